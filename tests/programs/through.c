/* A library of which two are made, with frames of different sizes: it calls what it is told to. The same code but for one byte, so that both
 * return to the same address where one takes the other's place. */
struct context;
typedef unsigned long (*step)(struct context *c, int depth);

__attribute__((noinline, visibility("default"))) unsigned long through_library(struct context *c, int depth, step to) {
    volatile unsigned long room[ROOM];
    room[0] = to(c, depth);
    return room[0];
}
