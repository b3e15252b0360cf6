// Counter-based random numbers: a draw is a pure function of (seed, stream, counter), so that what
// one sample draws never depends on what else is in its batch, and resuming needs no generator
// state. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace miles {

/// What a draw is for. Draws with different purposes are independent under the same seed.
enum class RngUse : uint32_t {
  init_weights = 1,
  sampling = 2,
  shuffle = 3,
  synthetic = 4,
  test = 5
};

/// One block of four independent uniform 32-bit words.
std::array<uint32_t, 4> philox(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter);

/// Uniform in (0, 1): never 0 or 1, 24 bits.
float uniform(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter);

/// Standard normal (Box–Muller on one philox block).
float normal(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter);

/// Uniform integer in [0, bound); bound > 0. Bias below 2^-32.
uint64_t uniform_below(uint64_t bound, uint64_t seed, RngUse use, uint64_t stream,
                       uint64_t counter);

/// A permutation of 0…n-1 (Fisher–Yates), a pure function of (n, seed, stream).
std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t stream);

}  // namespace miles
