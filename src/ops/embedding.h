// Rows by index: the token embedding, and any other gathering of rows.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// y[n] = table[ids[n]]. Every id is in [0, V).
struct EmbeddingArgs {
  Tensor ids;    // [N] i32
  Tensor table;  // [V, C] T
  Tensor y;      // [N, C] T
};
void embedding(Exec& exec, const EmbeddingArgs& args);

/// table[ids[n]] = y[n]. The ids are distinct; rows that none names stay as they are.
struct ScatterRowsArgs {
  Tensor ids;    // [N] i32
  Tensor y;      // [N, C] T
  Tensor table;  // [V, C] T
};
void scatter_rows(Exec& exec, const ScatterRowsArgs& args);

/// dtable[ids[n]] += dy[n], for each row in ascending n: deterministic, no atomics.
struct EmbeddingBackwardArgs {
  Tensor ids;     // [N] i32
  Tensor dy;      // [N, C] T
  Tensor dtable;  // [V, C] f32, accumulated
};
void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args);

}  // namespace miles
