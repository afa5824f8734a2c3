/* The timed functions of one entry form, each with a twin of the same code: dNS_FORM is watched, tNS_FORM is not. Built once for each form as
 * C and as C++, by the flags that make compilers begin functions so (build.rs). NS is nominal: the caller says how many turns. */
#include "durations.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TIMED(name) __attribute__((noinline, noclone, used, aligned(64))) void name(uint64_t turns)
#ifdef LARGE_FRAME
/* More than the red zone holds. */
#define FRAME char area[256]; __asm__ volatile("" : : "r"(area) : "memory");
#else
/* A register to save, so that a push begins it or follows what does. */
#define FRAME __asm__ volatile("" : : : "rbx");
#endif
/* The same code in every language. No turn is not possible, so that no branch stands before the loop. */
#define ONE(name) TIMED(name) { FRAME turn(turns); }
#define PAIR_OF(ns, form) ONE(d##ns##_##form) ONE(t##ns##_##form)
#define PAIR(ns, form) PAIR_OF(ns, form)
PAIR(100, FORM)
PAIR(300, FORM)
PAIR(1000, FORM)
PAIR(10000, FORM)
PAIR(1000000, FORM)

#ifdef __cplusplus
}
#endif
