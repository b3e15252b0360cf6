#include "ops/swiglu.h"

#include "ops/check.h"

namespace miles {

void swiglu(Exec& exec, const SwigluArgs& args) {
  const char* op = "swiglu";
  check_values({op, "y", args.y}, 2);
  check_tensor({op, "gate_up", args.gate_up}, args.y.dtype(), {args.y.dim(0), 2 * args.y.dim(1)});
  kernels(exec.device.kind()).swiglu(exec, args);
}

void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  const char* op = "swiglu_backward";
  check_values({op, "dy", args.dy}, 2);
  const Shape both = {args.dy.dim(0), 2 * args.dy.dim(1)};
  check_tensor({op, "gate_up", args.gate_up}, args.dy.dtype(), both);
  check_tensor({op, "dgate_up", args.dgate_up}, args.dy.dtype(), both);
  check_tensor({op, "y", args.y}, args.dy.dtype(), args.dy.shape());
  kernels(exec.device.kind()).swiglu_backward(exec, args);
}

}  // namespace miles
