/* The library that `hazards dlopen` loads and unloads. */
__attribute__((noinline, visibility("default"))) unsigned long plugin_function(unsigned long argument) {
    static volatile unsigned long calls;
    calls = calls + 1;
    return argument + 1;
}

/* Looks like a function of Go in a module of Go, for who asks before reading arguments. */
__attribute__((noinline, visibility("default"))) unsigned long go_handle(unsigned long argument) __asm__("main.handle");
unsigned long go_handle(unsigned long argument) {
    static volatile unsigned long calls;
    calls = calls + argument;
    return calls;
}
__attribute__((used, section(".note.go.buildid"))) static const char mark_of_go[] = "none";
