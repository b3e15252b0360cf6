#include "ops/gemm.h"

#include "base/error.h"
#include "ops/check.h"

namespace miles {
namespace {

/// A product's result and one of its operands.
struct Pair {
  const Argument& out;
  const Argument& in;
};

void check_apart(const Pair& pair) {
  const auto* out = static_cast<const std::byte*>(pair.out.tensor.data());
  const auto* in = static_cast<const std::byte*>(pair.in.tensor.data());
  MILES_CHECK(out + pair.out.tensor.bytes() <= in || in + pair.in.tensor.bytes() <= out,
              "{}: {} overlaps {}", pair.out.op, pair.out.name, pair.in.name);
}

/// `a` and `b` are matrices of one type, f32 or bf16.
void check_operands(const Argument& a, const Argument& b) {
  check_values(a, 2);
  check_values(b, 2);
  MILES_CHECK(a.tensor.dtype() == b.tensor.dtype(), "{}: {} is {} but {} is {}", a.op, a.name,
              name_of(a.tensor.dtype()), b.name, name_of(b.tensor.dtype()));
}

}  // namespace

void linear(Exec& exec, const LinearArgs& args) {
  const Argument x{"linear", "x", args.x}, w{"linear", "w", args.w}, y{"linear", "y", args.y};
  check_operands(x, w);
  check_tensor(w, args.x.dtype(), {args.w.dim(0), args.x.dim(1)});
  const bool logits = args.y.dtype() == DType::f32;
  check_tensor(y, logits ? DType::f32 : args.x.dtype(), {args.x.dim(0), args.w.dim(0)});
  check_apart({y, x});
  check_apart({y, w});
  check_workspace("linear", exec);
  if (args.x.dim(0) == 0) return;
  kernels(exec.device.kind()).linear(exec, args);
}

void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args) {
  const char* op = "linear_backward_input";
  const Argument dy{op, "dy", args.dy}, w{op, "w", args.w}, dx{op, "dx", args.dx};
  check_operands(dy, w);
  check_tensor(w, args.dy.dtype(), {args.dy.dim(1), args.w.dim(1)});
  check_tensor(dx, args.dy.dtype(), {args.dy.dim(0), args.w.dim(1)});
  check_apart({dx, dy});
  check_apart({dx, w});
  check_workspace(op, exec);
  if (args.dy.dim(0) == 0) return;
  kernels(exec.device.kind()).linear_backward_input(exec, args);
}

void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args) {
  const char* op = "linear_backward_weight";
  const Argument dy{op, "dy", args.dy}, x{op, "x", args.x}, dw{op, "dw", args.dw};
  check_operands(dy, x);
  check_tensor(x, args.dy.dtype(), {args.dy.dim(0), args.x.dim(1)});
  check_tensor(dw, DType::f32, {args.dy.dim(1), args.x.dim(1)});
  check_apart({dw, dy});
  check_apart({dw, x});
  check_workspace(op, exec);
  if (args.dy.dim(0) == 0) return;
  kernels(exec.device.kind()).linear_backward_weight(exec, args);
}

}  // namespace miles
