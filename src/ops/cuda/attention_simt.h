// Attention without tensor cores: f32, and head sizes that they do not take. Plain and slow; the
// same contract, and the same tiles of keys.
#pragma once

#include "ops/attention.h"

namespace miles::cuda {

void attention_simt(Exec&, const AttentionArgs&);
void attention_backward_simt(Exec&, const AttentionBackwardArgs&);

}  // namespace miles::cuda
