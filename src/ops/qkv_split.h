// Between the QKV projection and attention: split into heads, normalise queries and keys (Qwen3),
// rotate them, and put keys and values where attention will read them (KV cache pages, or a packed
// buffer). Sources: Su et al. 2021, eq. 34 (RoPE; half-split order, as Hugging Face stores it);
// Qwen3's q/k norm.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// For token n, head h: u = qkv[n, h];  if norms are given u = RMSNorm_D(u) · w (as
/// ops/rms_norm.h); then with d < D/2, (c, s) = rope[position, d]:
///   u'[d] = u[d]·c − u[d+D/2]·s,   u'[d+D/2] = u[d+D/2]·c + u[d]·s.
/// Queries go to q[n], keys and values (values untouched) to rows slots[n] of the pools.
/// f32 arithmetic; the normalised value is rounded to T before the rotation and the result once
/// after. D is even, at most 512. Slots are distinct; the key and value of a token with a negative
/// one go nowhere.
struct QkvSplitArgs {
  Tensor qkv;        // [N, (Hq + 2·Hkv)·D] T: queries, keys, values of each token
  Tensor q_norm;     // [D] T, or empty: no normalisation
  Tensor k_norm;     // [D] T, or empty
  Tensor positions;  // [N] i32: absolute position of each token
  Tensor rope;       // [positions, D] f32: D/2 cosines, then D/2 sines, per position
  Tensor slots;      // [N] i32: row of the pools for each token
  Tensor q;          // [N, Hq, D] T
  Tensor k_pool;     // [S, Hkv, D] T
  Tensor v_pool;     // [S, Hkv, D] T
  float eps = 0;     // of the norms
};
void qkv_split(Exec& exec, const QkvSplitArgs& args);

/// The reverse, for packed training buffers: row n of dk and dv belongs to token n.
struct QkvSplitBackwardArgs {
  Tensor dq;         // [N, Hq, D] T
  Tensor dk;         // [N, Hkv, D] T
  Tensor dv;         // [N, Hkv, D] T
  Tensor qkv;        // [N, (Hq + 2·Hkv)·D] T: the forward's input
  Tensor q_norm;     // [D] T, or empty
  Tensor k_norm;     // [D] T, or empty
  Tensor positions;  // [N] i32
  Tensor rope;       // as in the forward
  Tensor dqkv;       // [N, (Hq + 2·Hkv)·D] T, overwritten
  Tensor dq_norm;    // [D] f32, accumulated in a fixed order; empty with q_norm
  Tensor dk_norm;    // [D] f32, accumulated in a fixed order; empty with k_norm
  float eps = 0;
};
void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args);

}  // namespace miles
