import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;

/** A server of HTTP that adds up hashes. It ends with its standard input. */
public class Server {
    static long digest(int n) {
        long hash = 0xcbf29ce484222325L;
        for (int number = 0; number < n; number++) {
            for (byte b : Integer.toString(number).getBytes(StandardCharsets.US_ASCII)) {
                hash = (hash ^ (b & 0xff)) * 0x100000001b3L;
            }
        }
        return hash;
    }

    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0), 0);
        server.createContext("/digest", exchange -> {
            int n = Integer.parseInt(exchange.getRequestURI().getQuery().substring("n=".length()));
            byte[] body = String.format("%016x", digest(n)).getBytes(StandardCharsets.US_ASCII);
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        System.out.println("ready " + server.getAddress().getPort());
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }
}
