#include "ops/rms_norm.h"

#include "ops/check.h"

namespace miles {

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  const char* op = "rms_norm";
  check_values({op, "x", args.x}, 2);
  const DType type = args.x.dtype();
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  check_optional({op, "delta", args.delta}, type, {rows, columns});
  check_optional({op, "sum", args.sum}, type, {rows, columns});
  MILES_CHECK(args.delta || !args.sum, "{}: a sum, but nothing to add", op);
  check_tensor({op, "w", args.w}, type, {columns});
  check_tensor({op, "y", args.y}, type, {rows, columns});
  check_optional({op, "rstd", args.rstd}, DType::f32, {rows});
  MILES_CHECK(args.eps > 0, "{}: eps {}", op, args.eps);
  kernels(exec.device.kind()).rms_norm(exec, args);
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  const char* op = "rms_norm_backward";
  check_values({op, "x", args.x}, 2);
  const DType type = args.x.dtype();
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  check_tensor({op, "dy", args.dy}, type, {rows, columns});
  check_tensor({op, "w", args.w}, type, {columns});
  check_tensor({op, "rstd", args.rstd}, DType::f32, {rows});
  check_optional({op, "dresidual", args.dresidual}, type, {rows, columns});
  check_tensor({op, "dx", args.dx}, type, {rows, columns});
  check_tensor({op, "dw", args.dw}, DType::f32, {columns});
  check_workspace(op, exec);
  kernels(exec.device.kind()).rms_norm_backward(exec, args);
}

}  // namespace miles
