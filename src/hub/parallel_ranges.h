// Splits a long loop over the machine's cores, for the host-side work on whole models: converting,
// comparing and initialising weights.
#pragma once

#include <cstdint>
#include <functional>

namespace miles {

/// Calls body(first, last) over disjoint ranges that cover [0, count), several at once, and returns
/// when all are done. Every range but the last holds a multiple of `grain` elements and starts at
/// one; with less than two grains, the caller's thread does it all. `body` must not throw, and what
/// it computes must not depend on where the ranges are cut: that depends on the machine.
void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t first, int64_t last)>& body);

}  // namespace miles
