/* Calls functions that begin with vector instructions whose opcode byte a kernel may mistake (vectors.S).
 *
 *   cpu          ok able=1 if this CPU has FMA and AVX
 *   fnmadd N     N calls of vector_fnmadd, each result checked; ok right=N
 *   less N       N calls of vector_less, each result checked; ok right=N
 *   run MS       both in turns for that long; ok calls=C right=R
 *   busy MS      vector_busy for that long, each result checked; ok calls=C right=R */
#include "protocol.h"

#include <immintrin.h>
#include <time.h>

double vector_fnmadd(double a, double b, double c);
double vector_busy(double a, double b, double c);
__m128 vector_less(__m128 a, __m128 b);

static uint64_t fnmadd(uint64_t n) {
    uint64_t right = 0;
    for (uint64_t i = 0; i < n; i++) {
        double a = (double)(i & 1023);
        right += vector_fnmadd(a, 7.0, 3.0) == 7.0 - a * 3.0;
    }
    return right;
}

static uint64_t less(uint64_t n) {
    uint64_t right = 0;
    for (uint64_t i = 0; i < n; i++) {
        float x = (float)(i & 1023);
        __m128 mask = vector_less(_mm_set_ps(x, 1.0f, 600.0f, x), _mm_set1_ps(512.0f));
        right += _mm_movemask_ps(mask) == ((x < 512.0f ? 9 : 0) | 4);
    }
    return right;
}

static void command_cpu(int count, char **words) {
    (void)count, (void)words;
    reply("able=%d", __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx"));
}

static void command_fnmadd(int count, char **words) {
    reply("right=%lu", fnmadd(number(count, words, 1, 1)));
}

static void command_less(int count, char **words) {
    reply("right=%lu", less(number(count, words, 1, 1)));
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void command_run(int count, char **words) {
    uint64_t end = now_ms() + number(count, words, 1, 1000), calls = 0, right = 0;
    while (now_ms() < end) {
        right += fnmadd(10000) + less(10000);
        calls += 20000;
    }
    reply("calls=%lu right=%lu", calls, right);
}

static void command_busy(int count, char **words) {
    uint64_t end = now_ms() + number(count, words, 1, 1000), calls = 0, right = 0;
    for (; now_ms() < end; calls++)
        right += vector_busy((double)(calls & 1023), 7.0, 3.0) == 7.0 - (double)(calls & 1023) * 3.0;
    reply("calls=%lu right=%lu", calls, right);
}

int main(void) {
    static const struct command commands[] = {
        {"cpu", 0, command_cpu},   {"fnmadd", 1, command_fnmadd}, {"less", 1, command_less},
        {"run", 1, command_run},   {"busy", 1, command_busy},     {NULL, 0, NULL},
    };
    serve(commands);
}
