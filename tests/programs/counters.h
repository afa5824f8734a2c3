/* Numbers of the call counters, shared by C and assembler. Every traced function counts its own calls in its
 * thread's copy of `call_counts`, so that a test compares the tracer with the program, not with a loop bound. */
#define COUNT_PUSH 0
#define COUNT_NOP 1
#define COUNT_NOP5 2
#define COUNT_ENDBR_PUSH 3
#define COUNT_MOV 4
#define COUNT_SUB 5
#define COUNT_TEST_JE 6
#define COUNT_TWO_EXITS 7
#define COUNT_TAIL_JUMP 8
#define COUNT_LOOP_HEAD 9
#define COUNT_BIG 10
#define COUNT_RECURSE 11
#define COUNT_SLEEP 12
#define COUNT_SPIN 13
#define COUNT_OUTER 14
#define COUNT_INNER 15
#define COUNT_OPERATION 16
#define COUNT_OPERATION_DONE 17
#define COUNT_MIX 18
#define COUNT_MIX_SLOW 19
#define COUNT_MIX_MIDDLE 20
#define COUNT_MIX_FAST 21
#define COUNT_WOVEN 22
#define COUNT_WOVEN_FAST 23
#define COUNT_WOVEN_SLOW 24
#define COUNTERS 25

/* Functions big0 to big1999, for mass attachment. */
#define BIG_FUNCTIONS 2000
