// A server of HTTP that adds up hashes. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
)

//go:noinline
func digest(n int) uint64 {
	hash := uint64(0xcbf29ce484222325)
	for number := 0; number < n; number++ {
		for _, b := range []byte(strconv.Itoa(number)) {
			hash = (hash ^ uint64(b)) * 0x100000001b3
		}
	}
	return hash
}

func answer(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil {
		http.Error(w, "n is no number", http.StatusBadRequest)
		return
	}
	result := make(chan uint64)
	go func() { result <- digest(n) }()
	fmt.Fprintf(w, "%016x", <-result)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/digest", answer)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
