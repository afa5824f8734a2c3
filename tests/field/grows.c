// Calls one function of a library all the while, with sizes over three decades: how its time grows is known.
// grows MODE [IDLE]: says "ready" once it calls, and ends with its standard input. With IDLE it rests after each call, IDLE times as long as that took, and 1 ms at least.
// For `ppoll`.
#define _GNU_SOURCE
#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long word;

// Declared here: the headers would need packages that nothing else needs.
int compress2(unsigned char *to, word *to_length, const unsigned char *from, word length, int level);
word crc32(word crc, const unsigned char *bytes, unsigned length);
word __gmpn_mul(word *product, const word *a, long a_length, const word *b, long b_length);
void *BN_new(void), *BN_CTX_new(void);
int BN_rand(void *number, int bits, int top, int bottom);
int BN_mod_exp(void *result, const void *base, const void *power, const void *modulus, void *context);
void *json_loadb(const char *text, size_t length, size_t flags, void *error);
void json_delete(void *json);
void *pcre2_compile_8(const char *pattern, size_t length, uint32_t options, int *error, size_t *at, void *context);
void *pcre2_match_data_create_from_pattern_8(void *code, void *context);
int pcre2_match_8(void *code, const char *text, size_t length, size_t from, uint32_t options, void *found, void *context);

enum { SIZES = 36, MOST = 1 << 22, MOST_NUMBERS = 1 << 19 };

static word random_word(void) {
    static word state = 88172645463325252ul;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

// One of SIZES sizes between the two, evenly on a logarithmic scale.
static word draw(double least, double most) {
    return (word)(least * pow(most / least, (double)(random_word() % SIZES) / (SIZES - 1)));
}

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

// Slow by a chain of multiplications, each of which waits for the one before: neither memory nor what else the core does changes that much.
static int compare_slowly(const void *a, const void *b) {
    word chain = 1;
    for (int i = 0; i < 1500; i++) {
        chain *= 0x9e3779b97f4a7c15ul;
        __asm__ volatile("" : "+r"(chain));
    }
    return compare(a, b);
}

static volatile word sink;
static char *text;
static unsigned char *packed;
static int *numbers;
static word *a, *b, *product;

static void words(void) {
    static const char *of[] = {"error ", "warning ", "request ", "served ", "in ", "ms ", "user ", "cache "};
    for (size_t at = 0; at < MOST;) {
        char part[32];
        int length = snprintf(part, sizeof part, "%s%lu ", of[random_word() % 8], random_word() % 1000);
        memcpy(text + at, part, (size_t)length);
        at += (size_t)length;
    }
}

static void sort(void) {
    word n = draw(64, 64000);
    for (word i = 0; i < n; i++) numbers[i] = (int)random_word();
    qsort(numbers, n, sizeof *numbers, compare);
}

static void search(void) {
    // Through a pointer: compilers make it part of the program.
    void *(*volatile find)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
    // A key that is not there takes log2(n + 1) comparisons, whichever it is, where n + 1 is a power of two; elsewhere it takes a whole number, and n grows in between.
    word n = (16ul << random_word() % 16) - 1;
    int key = (int)(random_word() % n) * 2 + 1;
    sink += (word)find(&key, numbers, n, sizeof *numbers, compare_slowly);
}

static void compress_text(void) {
    word length = 2 * MOST, n = draw(60000, 2000000);
    // Below its window of 32 KiB it has less to look through.
    int level = random_word() % 2 ? 1 : 6;
    compress2(packed, &length, (unsigned char *)text + random_word() % 100000, n, level);
    sink += length;
}

static void checksum(void) { sink += crc32(0, (unsigned char *)text, (unsigned)draw(1000, 1000000)); }

static void multiply(void) {
    long n = (long)draw(8, 8000);
    sink += __gmpn_mul(product, a, n, b, n);
}

static void *moduli[SIZES], *bases[SIZES], *powers[SIZES], *result, *context;

static void raise(void) {
    word i = random_word() % SIZES;
    BN_mod_exp(result, bases[i], powers[i], moduli[i], context);
}

static void parse(void) {
    static char *json[SIZES];
    static size_t length[SIZES];
    word at = random_word() % SIZES;
    if (!json[at]) {
        size_t n = (size_t)(200 * pow(1000, (double)at / (SIZES - 1))), end = 1;
        char *of = json[at] = malloc(n + 64);
        *of = '[';
        while (end < n) end += (size_t)sprintf(of + end, "{\"id\": %lu, \"name\": \"x\"},", random_word() % 1000);
        of[end - 1] = ']';
        length[at] = end;
    }
    void *parsed = json_loadb(json[at], length[at], 0, NULL);
    if (!parsed) abort();
    json_delete(parsed);
}

static void *code, *found;

static void match_once(void) { sink += (word)pcre2_match_8(code, text + random_word() % 100000, draw(300, 300000), 0, 0, found, NULL); }

static void match_quadratic(void) { sink += (word)pcre2_match_8(code, text, draw(40, 4000), 0, 0, found, NULL); }

static void compile(const char *pattern) {
    int error;
    size_t at;
    code = pcre2_compile_8(pattern, strlen(pattern), 0, &error, &at, NULL);
    found = pcre2_match_data_create_from_pattern_8(code, NULL);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

// Rests, unless the input has ended meanwhile: the rest behind a long call may take half a minute.
static void rest(double seconds) {
    struct timespec length = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    ppoll(&input, 1, &length, NULL);
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    double idle = count > 2 ? atof(arguments[2]) : 0;
    // Freed memory is kept: what the kernel takes to give it again is no part of a function's growth.
    mallopt(M_TRIM_THRESHOLD, 1 << 30), mallopt(M_MMAP_THRESHOLD, 1 << 30);
    text = malloc(MOST + 64), packed = malloc(2 * MOST), numbers = malloc(sizeof *numbers * MOST_NUMBERS);
    a = malloc(8 * 8000), b = malloc(8 * 8000), product = malloc(16 * 8000);
    words();
    for (int i = 0; i < MOST_NUMBERS; i++) numbers[i] = 2 * i;
    for (int i = 0; i < 8000; i++) a[i] = random_word(), b[i] = random_word();
    void (*work)(void) = NULL;
    if (!strcmp(mode, "qsort")) work = sort;
    if (!strcmp(mode, "bsearch")) work = search;
    if (!strcmp(mode, "compress2")) work = compress_text;
    if (!strcmp(mode, "crc32")) work = checksum;
    if (!strcmp(mode, "mpn_mul")) work = multiply;
    if (!strcmp(mode, "json_loadb")) work = parse;
    if (!strcmp(mode, "pcre2_match")) {
        // Nothing in the text matches, and each place is looked at once.
        compile("request [a-z]");
        work = match_once;
    }
    if (!strcmp(mode, "pcre2_match, unanchored class")) {
        // From each place on, all that follows is looked through.
        compile("[^#]*[#%]");
        work = match_quadratic;
    }
    if (!strcmp(mode, "BN_mod_exp")) {
        result = BN_new(), context = BN_CTX_new();
        for (int i = 0; i < SIZES; i++) {
            // 8 to 128 words in steps of 8: OpenSSL multiplies numbers of other lengths by other code. The power has a quarter of the modulus' bits.
            int bits = 512 * (1 + i % 16);
            moduli[i] = BN_new(), bases[i] = BN_new(), powers[i] = BN_new();
            BN_rand(moduli[i], bits, 0, 1), BN_rand(bases[i], bits - 1, 0, 0), BN_rand(powers[i], bits / 4, 0, 0);
        }
        work = raise;
    }
    if (!work) return 2;
    for (word calls = 0;; calls++) {
        double begin = idle > 0 ? now() : 0;
        work();
        if (idle > 0) rest(fmax(1e-3, idle * (now() - begin)));
        if (calls == 0) puts("ready"), fflush(stdout);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if ((idle > 0 || calls % 64 == 0) && poll(&input, 1, 0) == 1) return 0;
    }
}
