// What the checks of an op's arguments share. A failure is a bug of the caller's: it aborts.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// Names an argument in a message: "rms_norm: x is …".
struct Argument {
  const char* op;
  const char* name;
  const Tensor& tensor;
};

/// The tensor is there and has this type and shape. Extents may be 0.
void check_tensor(const Argument& argument, DType dtype, const Shape& shape);

/// As check_tensor, unless the tensor is empty.
void check_optional(const Argument& argument, DType dtype, const Shape& shape);

/// The tensor is there, f32 or bf16, and has this rank.
void check_values(const Argument& argument, int rank);

/// The workspace is as large and as aligned as Exec promises.
void check_workspace(const char* op, const Exec& exec);

}  // namespace miles
