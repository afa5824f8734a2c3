/* Linked into memcached in the place of its `item_get` (`ld --wrap`), which it counts and times. One worker thread calls it. */
#include "clocked.h"
#include <stdbool.h>

void *__real_item_get(const char *key, size_t length, void *thread, bool update);
void *__wrap_item_get(const char *key, size_t length, void *thread, bool update);

void *__wrap_item_get(const char *key, size_t length, void *thread, bool update) {
    if (!slots)
        open_slots();
    if (slots[1].calls % 16 == 0)
        clock_itself();
    return CLOCKED(1, __real_item_get(key, length, thread, update));
}
