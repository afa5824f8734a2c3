/* Calls whose memory is known: word tests read it.
 *
 *   call TIMES   handles so many documents, some 3,000 a second, numbered on from the last one: ok calls=N of all so far
 *
 * Document i: text of i % 200 bytes, none where i % 5 == 4; kind -(i % 100); size i % 60000, one more when it was parsed; its first
 * node's next one holds i * 7, and there is none where i % 3 == 2. parse gets i ^ 0xff as well and returns i * 3. */
#include "protocol.h"

#include <string.h>
#include <time.h>

struct node {
    int64_t value;
    struct node *next;
};

struct document {
    uint64_t number;
    const char *text;
    struct node *first;
    int8_t kind;
    uint16_t size;
};

uint32_t handled;

__attribute__((noipa)) uint64_t parse(struct document *document, uint64_t mixed) {
    document->size++;
    return document->number * 3 + (mixed ^ document->number ^ 0xff);
}

__attribute__((noipa)) uint64_t handle(struct document *document) {
    uint64_t result = parse(document, document->number ^ 0xff);
    handled++;
    return result;
}

static void command_call(int count, char **words) {
    static uint64_t number_of_all;
    static char text[201];
    struct timespec pause = {0, 300000};
    for (uint64_t times = number(count, words, 1, 1); times > 0; times--) {
        uint64_t i = number_of_all++;
        memset(text, 'x', 200);
        text[i % 200] = 0;
        struct node second = {(int64_t)i * 7, NULL};
        struct node first = {-1, i % 3 == 2 ? NULL : &second};
        struct document document = {i, i % 5 == 4 ? NULL : text, &first, -(int8_t)(i % 100), i % 60000};
        if (handle(&document) != i * 3) {
            reply_error("call %lu gave another result", i);
            return;
        }
        nanosleep(&pause, NULL);
    }
    reply("calls=%lu", number_of_all);
}

int main(void) {
    static const struct command commands[] = {{"call", 1, command_call}, {NULL, 0, NULL}};
    serve(commands);
}
