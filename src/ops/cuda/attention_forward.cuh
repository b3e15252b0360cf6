// What the kernels of attention's forward share: their arguments, a sequence's part of them, and
// how a row ends.
#pragma once

#include "ops/cuda/attention_softmax.cuh"

namespace miles::cuda::attention_forward {

struct Forward {
  // Shapes as in AttentionArgs: N tokens, B sequences, S slots, R runs.
  const bf16* q;                             // [N, heads, dim]
  const bf16 *k, *v;                         // [S, kv_heads, dim]
  const int32_t* query_begin;                // [B + 1]
  const int32_t* context;                    // [B] keys
  const int32_t *pages, *kv_begin;           // [B, pages_per_sequence], [B]; one of them is null
  const int32_t *shared_runs, *shared_keys;  // [R, 2], [B]; null without runs
  bf16* out;                                 // [N, heads, dim]
  float* lse;                                // [N, heads], or null
  int sequences, heads, kv_heads;            // B, and the shapes' extents
  int group;                                 // query heads on a key head
  int dim;                                   // elements of a head
  int page_size;                             // keys
  int pages_per_sequence;                    // with `pages`
  float scale_log2;                          // of scores, to exponents of 2
  int runs;                                  // R
  int few_rows;     // attention_rows takes the sequences of at most so many rows, the other kernel
                    // the others
  float* prefixes;  // [B, heads, …] rows of runs after their shared tiles; null: none are shared
};

/// One sequence's part of a key head: rows are (token, head of the group), token-major.
struct Part {
  int sequence, kv_head;
  int begin;           // row of q of its first token
  int first_position;  // of its first token
  int rows;

  __device__ Part(const Forward& f, int b, int kv_head) : sequence(b), kv_head(kv_head) {
    begin = f.query_begin[b];
    const int tokens = f.query_begin[b + 1] - begin;
    first_position = f.context[b] - tokens;
    rows = tokens * f.group;
  }
  __device__ int position(const Forward& f, int row) const {
    return first_position + row / f.group;
  }
  /// Of lse; of q and out when multiplied by dim.
  __device__ int64_t at(const Forward& f, int row) const {
    return int64_t{begin + row / f.group} * f.heads + kv_head * f.group + row % f.group;
  }
  /// Of prefixes, where this sequence and those after it have one token each.
  __device__ int64_t prefix_at(const Forward& f, int row) const {
    return int64_t{sequence + row / f.group} * f.heads + kv_head * f.group + row % f.group;
  }
};

/// 1 / Σ weights, and the log-sum-exp of a row into lse.
__device__ inline float finish_row(const Forward& f, const RowState& rows, int half, int64_t at,
                                   bool write) {
  const float sum = row_sum(rows.sum[half]);
  if (write && f.lse != nullptr) f.lse[at] = fmaf(rows.top[half], kLn2, logf(sum));
  return 1.0F / sum;
}

}  // namespace miles::cuda::attention_forward
