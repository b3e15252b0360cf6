// Which token a filtered draw takes. The tokens stand in the order of the filters: likelier first,
// then lower id. A place in that order is found by halving the range of weights: how much do the
// tokens weigh that are at least so likely? Their weights are integers, so the answer is the same
// whether they are counted in the whole row or in a list of those that still matter.
#pragma once

#include "ops/cuda/sample_block.cuh"

namespace miles::cuda {

/// The bits of a weight, an f32 in [0, 1]: ordered as the weights are.
using Key = uint32_t;
constexpr Key kLargestKey = 0x3F800000U;  // of 1

__device__ inline unsigned long long weight_of(Key key) {
  return __float2ull_rn(__uint_as_float(key) * 0x1p43F);
}

/// A row of logits.
struct SampledRow {
  const float* logits;  // [vocab]
  int vocab;
  float max;  // of the logits
  float inverse_temperature;

  /// e^((logit − max) / temperature); 0 for NaN.
  __device__ float weight(float logit) const {
    const float w = expf((logit - max) * inverse_temperature);
    return w == w ? fminf(w, 1.0F) : 0.0F;
  }
};

struct Candidate {
  Key key;
  int32_t id;
};

/// The tokens that may be drawn: the row's, or a list of the likeliest.
class Candidates {
 public:
  __device__ Candidates(const SampledRow& row, Candidate* room, uint32_t capacity)
      : row_(row), list_(room), capacity_(capacity) {}

  /// Those with at least this key. From then on nobody may ask about smaller ones.
  __device__ Mass keep(Key lowest) {
    __shared__ uint32_t used;
    __syncthreads();
    if (threadIdx.x == 0) used = 0;
    __syncthreads();
    Mass mine = {};
    for_each([&](Key key, int32_t id) {
      if (key < lowest) return;
      mine.weight += weight_of(key);
      ++mine.count;
      const uint32_t place = atomicAdd(&used, 1U);
      if (place < capacity_) list_[place] = {key, id};
    });
    const Mass all = block_total(mine);  // its barrier also completes the list
    if (all.count <= capacity_) listed_ = static_cast<int>(all.count);
    return all;
  }

  __device__ Mass at_least(Key lowest) const {
    Mass mine = {};
    for_each([&](Key key, int32_t) {
      if (key < lowest) return;
      mine.weight += weight_of(key);
      ++mine.count;
    });
    return block_total(mine);
  }

  /// Shortens the list, if there is none yet and it would fit.
  __device__ void narrow(Key lowest, const Mass& mass) {
    if (listed_ < 0 && mass.count <= capacity_) keep(lowest);
  }

  /// The n-th of the ids with this key, from 1.
  __device__ int32_t nth_id(Key wanted, uint64_t n) const {
    if (n == 1) {
      int lowest = kNobody;
      for_each([&](Key key, int32_t id) {
        if (key == wanted) lowest = min(lowest, id);
      });
      return block_min(lowest);
    }
    int low = -1,
        high = row_.vocab - 1;  // up to low there are fewer than n, up to high there are n
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      Mass mine = {};
      for_each([&](Key key, int32_t id) { mine.count += key == wanted && id <= middle; });
      (block_total(mine).count >= n ? high : low) = middle;
    }
    return high;
  }

 private:
  template <class Body>
  __device__ void for_each(Body body) const {
    const int me = static_cast<int>(threadIdx.x);
    if (listed_ >= 0) {
      for (int i = me; i < listed_; i += kSampleThreads) body(list_[i].key, list_[i].id);
      return;
    }
#pragma unroll 4
    for (int i = me; i < row_.vocab; i += kSampleThreads)
      body(__float_as_uint(row_.weight(row_.logits[i])), i);
  }

  const SampledRow& row_;
  Candidate* list_;  // [capacity]
  uint32_t capacity_;
  int listed_ = -1;  // candidates in the list; −1: there is none
};

/// A place in the order: the first at which so much weight or so many tokens are reached.
struct Goal {
  unsigned long long weight;
  uint32_t count;
  __device__ bool reached(const Mass& m) const { return m.weight >= weight || m.count >= count; }
};
struct Place {
  Key key;     // of the token there
  Mass above;  // of all tokens with larger keys
};

/// The place of a goal that the tokens with at least the key `low` reach.
__device__ inline Place find(Candidates& candidates, const Goal& goal, Key low) {
  Key high = kLargestKey + 1;
  Mass above = {};
  while (high - low > 1) {
    const Key middle = low + (high - low) / 2;
    const Mass mass = candidates.at_least(middle);
    if (goal.reached(mass)) {
      low = middle;
      candidates.narrow(low, mass);
    } else {
      high = middle;
      above = mass;
    }
  }
  return {low, above};
}

}  // namespace miles::cuda
