// CUDA's bodies of the ops: one file per op beside this one.
#pragma once

#include "ops/backend.h"

namespace miles {

/// Throws Error{device} in a build without CUDA.
const Kernels& cuda_kernels();

namespace cuda {

void adamw(Exec&, const AdamWArgs&);
void add(Exec&, const AddArgs&);
void attention(Exec&, const AttentionArgs&);
void attention_backward(Exec&, const AttentionBackwardArgs&);
void cast(Exec&, const CastArgs&);
void embedding(Exec&, const EmbeddingArgs&);
void embedding_backward(Exec&, const EmbeddingBackwardArgs&);
void fill_drawn_ids(Exec&, const FillDrawnIdsArgs&);
void linear(Exec&, const LinearArgs&);
void linear_backward_input(Exec&, const LinearBackwardInputArgs&);
void linear_backward_weight(Exec&, const LinearBackwardWeightArgs&);
void log_prob(Exec&, const LogProbArgs&);
void log_prob_backward(Exec&, const LogProbBackwardArgs&);
void qkv_split(Exec&, const QkvSplitArgs&);
void qkv_split_backward(Exec&, const QkvSplitBackwardArgs&);
void rms_norm(Exec&, const RmsNormArgs&);
void rms_norm_backward(Exec&, const RmsNormBackwardArgs&);
void sample(Exec&, const SampleArgs&);
void scatter_rows(Exec&, const ScatterRowsArgs&);
void sum_of_squares(Exec&, const SumOfSquaresArgs&);
void swiglu(Exec&, const SwigluArgs&);
void swiglu_backward(Exec&, const SwigluBackwardArgs&);

}  // namespace cuda
}  // namespace miles
