#include "ops/log_prob.h"

#include "ops/check.h"

namespace miles {

void log_prob(Exec& exec, const LogProbArgs& args) {
  const char* op = "log_prob";
  check_values({op, "logits", args.logits}, 2);
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  MILES_CHECK(vocab > 0, "{}: logits is {}", op, args.logits.shape().str());
  check_tensor({op, "logits", args.logits}, DType::f32, {rows, vocab});
  check_tensor({op, "targets", args.targets}, DType::i32, {rows});
  check_tensor({op, "inverse_temperature", args.inverse_temperature}, DType::f32, {rows});
  check_tensor({op, "log_prob", args.log_prob}, DType::f32, {rows});
  check_optional({op, "lse", args.lse}, DType::f32, {rows});
  check_optional({op, "entropy", args.entropy}, DType::f32, {rows});
  check_workspace(op, exec);
  kernels(exec.device.kind()).log_prob(exec, args);
}

void log_prob_backward(Exec& exec, const LogProbBackwardArgs& args) {
  const char* op = "log_prob_backward";
  check_values({op, "logits", args.logits}, 2);
  check_values({op, "dlogits", args.dlogits}, 2);
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  check_tensor({op, "logits", args.logits}, DType::f32, {rows, vocab});
  check_tensor({op, "targets", args.targets}, DType::i32, {rows});
  check_tensor({op, "inverse_temperature", args.inverse_temperature}, DType::f32, {rows});
  check_tensor({op, "lse", args.lse}, DType::f32, {rows});
  check_tensor({op, "entropy", args.entropy}, DType::f32, {rows});
  check_tensor({op, "d_log_prob", args.d_log_prob}, DType::f32, {rows});
  check_tensor({op, "d_entropy", args.d_entropy}, DType::f32, {rows});
  check_tensor({op, "dlogits", args.dlogits}, args.dlogits.dtype(), {rows, vocab});
  MILES_CHECK(args.dlogits.data() != args.logits.data() || args.dlogits.dtype() == DType::f32,
              "{}: dlogits may be logits itself only as float32", op);
  kernels(exec.device.kind()).log_prob_backward(exec, args);
}

}  // namespace miles
