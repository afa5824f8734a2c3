/* A program with known numbers of calls at each stage of its start: 3 of in_preinit (run by the loader, before the
 * constructors of the libraries), 5 of in_constructor, 1 of main, then what the arguments say. It prints nothing.
 *
 *   launched calls N STATUS     N calls of in_main and of getppid (libc), then exit(STATUS)
 *   launched signal N           ends by signal N
 *   launched wait               until a signal ends it
 *   launched graceful           until SIGTERM, then exit(9)
 *   launched tidy               until SIGINT, then exit(5) after 2 s; or until SIGTERM, then exit(9)
 *   launched stubborn           the same, and SIGINT is ignored
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNTED __attribute__((noipa))

static volatile unsigned long calls;

COUNTED void in_preinit(void) { calls++; }
COUNTED void in_constructor(void) { calls++; }
COUNTED void in_main(void) { calls++; }

static void preinit(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    for (int i = 0; i < 3; i++) in_preinit();
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit_entry)(int, char **, char **) = preinit;

__attribute__((constructor)) static void constructor(void) {
    for (int i = 0; i < 5; i++) in_constructor();
}

static void ended(int signal) {
    (void)signal;
    _exit(9);
}

static void tidy(int signal) {
    (void)signal;
    sleep(2);
    _exit(5);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "calls") == 0) {
        for (long n = atol(argv[2]); n > 0; n--) {
            in_main();
            getppid();
        }
        return atoi(argv[3]);
    }
    if (argc == 3 && strcmp(argv[1], "signal") == 0) {
        raise(atoi(argv[2]));
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "wait") != 0) signal(SIGTERM, ended);
    if (argc == 2 && strcmp(argv[1], "tidy") == 0) signal(SIGINT, tidy);
    if (argc == 2 && strcmp(argv[1], "stubborn") == 0) signal(SIGINT, SIG_IGN);
    if (argc == 2)
        for (;;) pause();
    return 2;
}
