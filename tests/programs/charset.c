/* A character set, as the C library's iconv loads it. Converting from it ends the thread: the module imports pthread_exit. */
#include <gconv.h>
#include <pthread.h>
#include <stddef.h>

int gconv_init(struct __gconv_step *step) {
    step->__min_needed_from = step->__max_needed_from = 1;
    step->__min_needed_to = step->__max_needed_to = 4;
    step->__stateful = 0;
    return __GCONV_OK;
}

int gconv(struct __gconv_step *step, struct __gconv_step_data *data, const unsigned char **from, const unsigned char *end,
          unsigned char **to, size_t *irreversible, int flush, int consume) {
    (void)step, (void)data, (void)to, (void)irreversible, (void)consume;
    if (flush || *from == end)
        return __GCONV_OK;
    pthread_exit(PTHREAD_CANCELED);
}
