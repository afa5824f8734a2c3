// Fibers by Boost.Context, whose switch is its own assembly.
#include "fibers.h"
#include <boost/context/fiber.hpp>

namespace context = boost::context;

static context::fiber scheduler, fibers[FIBERS];

extern "C" void fiber_yield(void) { scheduler = std::move(scheduler).resume(); }

static void run_fibers(uint64_t seed, uint64_t *sums) {
    for (uint64_t fiber = 0; fiber < FIBERS; fiber++) {
        fibers[fiber] = context::fiber([seed, sums, fiber](context::fiber &&back) {
            scheduler = std::move(back);
            sums[fiber] = fiber_sum(seed, fiber);
            return std::move(scheduler);
        });
    }
    for (bool left = true; left;) {
        left = false;
        for (auto &fiber : fibers) {
            if (!fiber)
                continue;
            fiber = std::move(fiber).resume();
            left |= static_cast<bool>(fiber);
        }
    }
}
