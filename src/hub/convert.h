// Conversion between the floating types that weights are stored and computed in.
#pragma once

#include "tensor/tensor.h"

namespace miles {

/// to[i] = from[i], rounded to nearest even where `to` is narrower; NaN stays NaN.
/// from: f32, bf16 or f16, at any address (files do not align); to: f32 or bf16; as many elements.
/// They do not overlap. Runs on several cores; the result does not depend on how many.
void convert(const Tensor& from, const Tensor& to);

}  // namespace miles
