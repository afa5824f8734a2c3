/* Functions of five durations, ns, in four entry forms, each with a twin: dNS_FORM and tNS_FORM. */
#pragma once
#include <stdint.h>

typedef void timed_function(uint64_t turns);

#define FOR_FORMS(macro, ns) macro(ns, push) macro(ns, nop5) macro(ns, endbr) macro(ns, sub)
#define FOR_ALL(macro) \
    FOR_FORMS(macro, 100) FOR_FORMS(macro, 300) FOR_FORMS(macro, 1000) FOR_FORMS(macro, 10000) FOR_FORMS(macro, 1000000)
