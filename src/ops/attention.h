// Causal grouped-query attention over a paged or packed key/value pool: ONE recurrence for prefill,
// decode and training, so that a token's output does not depend on how it was computed.
// Sources: Milakov & Gimelshein 2018 (online softmax); Dao 2023 (FlashAttention-2, alg. 1 and 2).
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// Keys are visited in tiles of this many absolute positions, ascending.
inline constexpr int kAttentionTile = 64;
/// Sequences of a run of AttentionArgs::shared_runs, at most.
inline constexpr int kAttentionRun = 8;

/// For query row n of sequence b at absolute position p (its last query is at context[b] − 1):
///   out[n,h] = Σ_{j≤p} softmax_j(scale · q[n,h]·k[j,h/(Hq/Hkv)]) · v[j,·]
///   lse[n,h] = log Σ_{j≤p} exp(scale · q[n,h]·k[j,h/(Hq/Hkv)])
/// Scores, softmax and sums in f32 (on AMX a probability enters its product as two bf16, 16 bits of
/// mantissa); the output is rounded once. Bits of a row depend on its query, its
/// keys and values and p alone: not on the batch, the page order, or how many rows come at once. A
/// key beyond p, or an unused slot, is never multiplied: it may hold NaN. D is at most kMaxHeadDim.
struct AttentionArgs {
  Tensor q;            // [N, Hq, D] T
  Tensor k_pool;       // [S, Hkv, D] T
  Tensor v_pool;       // [S, Hkv, D] T
  Tensor query_begin;  // [B + 1] i32: sequence b has q's rows query_begin[b] … query_begin[b+1] − 1
  Tensor context;      // [B] i32: keys of sequence b, its queries' own included
  Tensor page_table;  // [B, P] i32: key j is row page_table[b, j / size]·size + j % size, with the
                      // page's size; or empty, …
  Tensor kv_begin;    // [B] i32: … and then key j is row kv_begin[b] + j
  int page_size = 0;  // tokens a page, any number; > 0 with a page_table
  // A hint, which changes no bit: who shares keys, so that they may be read once for several. A run
  // is the sequences b0 … b0 + n − 1 of one query each whose keys [0, shared_keys) are the same
  // rows of the pools: samples of one prompt. No sequence is in two runs.
  Tensor shared_runs =
      {};  // [R, 2] i32: b0 and n ≤ kAttentionRun of each, n = 0 for none; or empty
  Tensor shared_keys = {};  // [B] i32, with shared_runs: fewer than context, the same for all of a
                            // run, and 0 in none
  float scale = 1;          // usually 1/√D
  Tensor out;               // [N, Hq, D] T
  Tensor lse;               // [N, Hq] f32, or empty
};
void attention(Exec& exec, const AttentionArgs& args);

/// Gradients for packed sequences (row n of k and v is token n). Deterministic.
///   p = exp(s − lse),  dv = pᵀ·dout,  ds = p ∘ (dout·vᵀ − rowsum(dout ∘ out)),  dq = scale·ds·k,
///   dk = scale·dsᵀ·q.
struct AttentionBackwardArgs {
  Tensor q;            // [N, Hq, D] T
  Tensor k;            // [N, Hkv, D] T
  Tensor v;            // [N, Hkv, D] T
  Tensor out;          // [N, Hq, D] T
  Tensor lse;          // [N, Hq] f32
  Tensor dout;         // [N, Hq, D] T
  Tensor query_begin;  // [B + 1] i32
  float scale = 1;
  // A hint, which changes no bit: memory for what would else be computed twice. CUDA uses it for
  // bf16 heads of 128 on Hopper, where it holds N · longest bytes, or so, for each of several query
  // heads. What it held is lost; it overlaps nothing.
  Tensor scratch = {};  // [bytes] u8, at a multiple of 16; or empty
  int64_t longest = 0;  // tokens that no sequence exceeds; 0: not known, and scratch is not used
  Tensor dq;            // [N, Hq, D] T, overwritten
  Tensor dk;            // [N, Hkv, D] T, overwritten
  Tensor dv;            // [N, Hkv, D] T, overwritten
};
void attention_backward(Exec& exec, const AttentionBackwardArgs& args);

}  // namespace miles
