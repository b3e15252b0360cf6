// Attention of sequences of few rows: decode.
#pragma once

#include "ops/backend.h"

namespace miles::cuda {

namespace attention_forward {
struct Forward;
}

/// The sequences of at most few_rows rows. The keys that a run shares are read once for it where
/// that pays: where one block for each sequence and key head are more than the card runs at once.
/// Tests put MILES_CUDA_BLOCKS_AT_ONCE to 0 to have it always.
void attention_rows(Exec& exec, attention_forward::Forward f);

}  // namespace miles::cuda
