#pragma once

#include "tensor/tensor.h"

namespace miles {

/// Extent i of a tensor, for kernels. Out of line because Tensor::dim() carries a formatted check,
/// whose templates must not be instantiated with wide instructions: the linker might keep that copy
/// for all.
int64_t extent(const Tensor& tensor, int i);

}  // namespace miles
