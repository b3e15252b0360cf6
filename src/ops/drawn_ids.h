// Tokens that were drawn on the device and not yet seen by the host: a batch names them by their
// draw, and the device puts the ids in.
#pragma once

#include <cstdint>

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// What stands in a batch for the token of that draw; below 0, as no id is.
constexpr int32_t id_of_draw(int64_t draw) {
  return static_cast<int32_t>(-1 - draw);
}

/// ids[n] = drawn[d] where ids[n] is id_of_draw(d); others stay. A draw that failed (−1) counts as
/// id 0, so that every id is one of the table's.
struct FillDrawnIdsArgs {
  Tensor ids;    // [N] i32, updated
  Tensor drawn;  // [R] i32: sample()'s tokens
};
void fill_drawn_ids(Exec& exec, const FillDrawnIdsArgs& args);

}  // namespace miles
