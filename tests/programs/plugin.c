/* The library that `hazards dlopen` loads and unloads. */
__attribute__((noinline, visibility("default"))) unsigned long plugin_function(unsigned long argument) {
    static volatile unsigned long calls;
    calls = calls + 1;
    return argument + 1;
}
