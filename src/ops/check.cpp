#include "ops/check.h"

#include <cstdint>

#include "base/error.h"

namespace miles {

void check_tensor(const Argument& argument, DType dtype, const Shape& shape) {
  const Tensor& t = argument.tensor;
  MILES_CHECK(t || shape.elements() == 0, "{}: {} is empty, expected {}", argument.op,
              argument.name, shape.str());
  MILES_CHECK(t.dtype() == dtype && t.shape() == shape, "{}: {} is {} {}, expected {} {}",
              argument.op, argument.name, name_of(t.dtype()), t.shape().str(), name_of(dtype),
              shape.str());
}

void check_optional(const Argument& argument, DType dtype, const Shape& shape) {
  if (argument.tensor) check_tensor(argument, dtype, shape);
}

void check_values(const Argument& argument, int rank) {
  const Tensor& t = argument.tensor;
  MILES_CHECK(t.dtype() == DType::f32 || t.dtype() == DType::bf16,
              "{}: {} is {}, expected float32 or bfloat16", argument.op, argument.name,
              name_of(t.dtype()));
  MILES_CHECK(t.shape().rank() == rank, "{}: {} is {}, expected {} extents", argument.op,
              argument.name, t.shape().str(), rank);
}

void check_workspace(const char* op, const Exec& exec) {
  const int64_t need = workspace_bytes(exec.device.kind());
  const int64_t alignment = workspace_alignment(exec.device.kind());
  MILES_CHECK(static_cast<int64_t>(exec.workspace.size()) >= need &&
                  reinterpret_cast<intptr_t>(exec.workspace.data()) % alignment == 0,
              "{}: a workspace of {} bytes at {}, expected {} at a multiple of {}", op,
              exec.workspace.size(), static_cast<const void*>(exec.workspace.data()), need,
              alignment);
}

}  // namespace miles
