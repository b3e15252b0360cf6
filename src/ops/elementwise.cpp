#include "ops/elementwise.h"

#include "ops/check.h"

namespace miles {

void cast(Exec& exec, const CastArgs& args) {
  const char* op = "cast";
  check_values({op, "from", args.from}, 1);
  check_values({op, "to", args.to}, 1);
  check_tensor({op, "to", args.to}, args.to.dtype(), args.from.shape());
  if (args.squares) {
    check_tensor({op, "squares", args.squares}, DType::f32, {1});
    check_workspace(op, exec);
  }
  kernels(exec.device.kind()).cast(exec, args);
}

void add(Exec& exec, const AddArgs& args) {
  const char* op = "add";
  check_values({op, "x", args.x}, 1);
  check_tensor({op, "y", args.y}, args.x.dtype(), args.x.shape());
  check_tensor({op, "sum", args.sum}, args.x.dtype(), args.x.shape());
  kernels(exec.device.kind()).add(exec, args);
}

void sum_of_squares(Exec& exec, const SumOfSquaresArgs& args) {
  const char* op = "sum_of_squares";
  check_values({op, "x", args.x}, 1);
  check_tensor({op, "out", args.out}, DType::f32, {1});
  check_workspace(op, exec);
  kernels(exec.device.kind()).sum_of_squares(exec, args);
}

}  // namespace miles
