/*
 * Linked into memcached in the place of some functions that one file of it calls in another (`ld --wrap`), which it counts and times. One worker thread
 * calls them.
 */
#include "clocked.h"
#include <stdbool.h>

enum { EMPTY, ITEM_GET, STORE_ITEM, COMPLETE_NREAD, TRY_READ };

void *__real_item_get(const char *key, size_t length, void *connection, bool update);
void *__wrap_item_get(const char *key, size_t length, void *connection, bool update);
int __real_store_item(void *item, int how, void *connection);
int __wrap_store_item(void *item, int how, void *connection);
void __real_complete_nread_ascii(void *connection);
void __wrap_complete_nread_ascii(void *connection);
int __real_try_read_command_ascii(void *connection);
int __wrap_try_read_command_ascii(void *connection);

void *__wrap_item_get(const char *key, size_t length, void *connection, bool update) {
    if (!slots)
        open_slots();
    if (slots[ITEM_GET].calls % 16 == 0)
        clock_itself();
    return CLOCKED(ITEM_GET, __real_item_get(key, length, connection, update));
}

int __wrap_store_item(void *item, int how, void *connection) {
    if (!slots)
        open_slots();
    return CLOCKED(STORE_ITEM, __real_store_item(item, how, connection));
}

void __wrap_complete_nread_ascii(void *connection) {
    if (!slots)
        open_slots();
    CLOCKED(COMPLETE_NREAD, (__real_complete_nread_ascii(connection), 0));
}

int __wrap_try_read_command_ascii(void *connection) {
    if (!slots)
        open_slots();
    return CLOCKED(TRY_READ, __real_try_read_command_ascii(connection));
}
