/* Blocks compressed and decompressed by libzstd; each must come back as it was. */
#include "clocked.h"
#include <string.h>

typedef void *any;
any ZSTD_createCCtx(void);
any ZSTD_createDCtx(void);
size_t ZSTD_compress2(any, void *, size_t, const void *, size_t);
size_t ZSTD_decompressDCtx(any, void *, size_t, const void *, size_t);
unsigned ZSTD_isError(size_t);

enum { EMPTY, COMPRESS, DECOMPRESS };
enum { BLOCKS = 16, BLOCK = 16384 };

int main(void) {
    static char data[BLOCKS][BLOCK], coded[2 * BLOCK], again[BLOCK];
    static const char *words[] = {"tracing ", "sampling ", "the ", "budget ", "of ", "a ", "function ", "call, ", "time.\n", "probe "};
    open_slots();
    signal(SIGTERM, on_term);
    uint64_t number = 0;
    for (int i = 0; i < BLOCKS; i++) {
        size_t filled = 0;
        while (filled < BLOCK) {
            const char *word = words[mixed(number++) % 10];
            size_t length = strlen(word) < BLOCK - filled ? strlen(word) : BLOCK - filled;
            memcpy(data[i] + filled, word, length);
            filled += length;
        }
    }
    any to = ZSTD_createCCtx(), back = ZSTD_createDCtx();
    puts("begun");
    fflush(stdout);
    for (uint64_t step = 0; !stopped; step++) {
        const char *block = data[step % BLOCKS];
        rest();
        clock_itself();
        size_t size = CLOCKED(COMPRESS, ZSTD_compress2(to, coded, sizeof coded, block, BLOCK));
        if (ZSTD_isError(size))
            fail("a compression");
        for (int i = 0; i < 4; i++) {
            if (CLOCKED(DECOMPRESS, ZSTD_decompressDCtx(back, again, BLOCK, coded, size)) != BLOCK || memcmp(again, block, BLOCK) != 0)
                fail("a decompression");
        }
    }
    return 0;
}
