// How attention is cut into tasks: each sequence into blocks, each block times each key/value head.
// Tasks write disjoint results, so their order and the threads that run them leave no trace.
#pragma once

#include <omp.h>

#include "ops/backend.h"
#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {

struct AttentionTask {
  int64_t sequence;
  int64_t kv_head;
  int64_t block;  // within the sequence
};

/// The tasks of one pass. Lives in the workspace: room for sequences + 1 numbers.
class AttentionTasks {
 public:
  /// Sequence b has `per_token`·(query_begin[b+1] − query_begin[b]) rows, in blocks of block_rows.
  AttentionTasks(int32_t* first_block, const int32_t* query_begin, int64_t sequences)
      : first_block_(first_block), query_begin_(query_begin), sequences_(sequences) {}
  void cut(int64_t per_token, int64_t block_rows, int64_t kv_heads) {
    kv_heads_ = kv_heads;
    first_block_[0] = 0;
    for (int64_t b = 0; b < sequences_; ++b) {
      const int64_t rows = (query_begin_[b + 1] - query_begin_[b]) * per_token;
      first_block_[b + 1] =
          first_block_[b] + static_cast<int32_t>((rows + block_rows - 1) / block_rows);
    }
  }
  int64_t count() const { return first_block_[sequences_] * kv_heads_; }
  AttentionTask at(int64_t i) const {
    const int64_t block = i / kv_heads_;
    int64_t low = 0, high = sequences_;  // first_block_[low] ≤ block < first_block_[high]
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_block_[middle] <= block ? low : high) = middle;
    }
    return {low, i % kv_heads_, block - first_block_[low]};
  }

 private:
  int32_t* first_block_;        // [sequences + 1]
  const int32_t* query_begin_;  // [sequences + 1]
  int64_t sequences_;
  int64_t kv_heads_ = 1;
};

/// Below this much work a pass runs on the caller's thread: waking others costs more.
constexpr int64_t kSerialWork = 1 << 18;
/// The work of `rows` query rows that see `keys` keys each: multiply-adds, and what a softmax
/// costs.
MILES_INLINE int64_t attention_work(int64_t rows, int64_t keys, int64_t dim) {
  constexpr int64_t kLeastKeys = 64, kSoftmax = 32;
  return rows * (keys + kLeastKeys) * (dim + kSoftmax);
}

/// The workspace after the task list, cut into equal pieces, one a thread.
struct ThreadScratch {
  float* base;     // 64-byte aligned
  int64_t floats;  // of one piece
  int threads;     // pieces: one a thread, or as many as there is room for
};
MILES_INLINE ThreadScratch cut_scratch(const Exec& exec, int64_t sequences, int64_t floats) {
  const int64_t skip = (sequences + 1 + kSums - 1) / kSums * kSums;  // floats under the task list
  const int64_t all = static_cast<int64_t>(exec.workspace.size() / sizeof(float));
  return {reinterpret_cast<float*>(exec.workspace.data()) + skip, floats,
          static_cast<int>(smaller(omp_get_max_threads(), (all - skip) / floats))};
}

}  // namespace miles::MILES_ISA
