/* A target that works: a budget is a share of what the target uses. */
#include "burn.h"
#include "protocol.h"

#include <pthread.h>
#include <stdatomic.h>

#define MAX_BURNERS 64

uint64_t rounds_per_us;

/* The fastest of five runs: an interrupted run reads too slow. */
void calibrate_burn(void) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cpu_ns();
        burn(1000000);
        uint64_t ns = cpu_ns() - start;
        best = ns < best ? ns : best;
    }
    rounds_per_us = 1000000000u / (best ? best : 1);
}

static atomic_int burning;
static pthread_t burners[MAX_BURNERS];
static int burner_count;

static void *burner_main(void *data) {
    while (atomic_load(&burning))
        burn(100 * rounds_per_us);
    return data;
}

void command_burn(int count, char **words) {
    int wanted = (int)number(count, words, 1, 0);
    atomic_store(&burning, 0);
    while (burner_count > 0)
        pthread_join(burners[--burner_count], NULL);
    atomic_store(&burning, 1);
    while (burner_count < wanted && burner_count < MAX_BURNERS)
        if (pthread_create(&burners[burner_count], NULL, burner_main, NULL) == 0)
            burner_count++;
        else
            break;
    reply("burning=%d", burner_count);
}
