/* What a call graph has: direct calls, tail jumps, the PLT, a switch, addresses taken, pointers, recursion, loops in one another, a cold
   part. Nothing watches it; its machine code is compared with what a disassembler says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone))

typedef int (*step)(int);

NOINLINE static int add(int x) { return x + 1; }
NOINLINE static int twice(int x) { return x * 2; }
NOINLINE static int minus(int x) { return x - 1; }

/* Held in data alone. */
static const step steps[] = {add, twice, minus};

NOINLINE int through_pointer(int which, int x) { return steps[which % 3](x) + 1; }

NOINLINE int tail(int x) { return twice(x + 3); }

NOINLINE int tail_through_pointer(step f, int x) { return f(x); }

NOINLINE int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

NOINLINE int odd(int n);
NOINLINE int even(int n) { return n == 0 ? 1 : odd(n - 1) * 2; }
NOINLINE int odd(int n) { return n == 0 ? 0 : even(n - 1) * 3; }

/* A jump through a table: its entries are no callees. */
NOINLINE int ways(int which, int x)
{
    switch (which) {
    case 0: return add(x) * 3;
    case 1: return twice(x) + 5;
    case 2: return minus(x) - 7;
    case 3: return fib(x) + 11;
    case 4: return even(x) * 13;
    case 5: return puts("five") + 17;
    case 6: return (int)strlen(getenv("PATH") ? getenv("PATH") : "");
    default: return x;
    }
}

NOINLINE __attribute__((cold)) static void unlikely(int x) { fprintf(stderr, "%d is not likely\n", x); }

/* The compiler puts what calls a cold function into a part of its own. */
NOINLINE int with_cold_part(int x)
{
    if (__builtin_expect(x == 12345, 0)) {
        unlikely(x);
        unlikely(x + 1);
        abort();
    }
    return x * 31;
}

/* One case of the table lies in a part that nothing else leads to. */
NOINLINE int cold_case(int way, int x)
{
    switch (way) {
    case 0: return twice(x) + 1;
    case 1: return add(x) * 3;
    case 2: return x * 17;
    case 3:
        unlikely(x + 1);
        abort();
    case 4: return minus(x) ^ 9;
    case 5: return x / 3;
    default: return fib(x) - 2;
    }
}

/* Two loops in one another, and one behind them. */
NOINLINE long loops(const char *text, int rows)
{
    long sum = 0;
    for (int row = 0; row < rows; row++)
        for (const char *c = text; *c; c++)
            sum += with_cold_part(*c) ^ row;
    while (sum > 1000)
        sum = tail((int)(sum / 7));
    return sum;
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv)
{
    int numbers[] = {argc, 3, 2};
    qsort(numbers, 3, sizeof numbers[0], by_number);
    int sum = through_pointer(argc, numbers[0]) + tail(numbers[1]) + tail_through_pointer(argc > 1 ? add : minus, 4);
    for (int i = 0; i < argc; i++)
        sum += ways(i, numbers[2]) + cold_case(i, sum);
    printf("%d %ld\n", sum, loops(argv[0], argc));
    return 0;
}
