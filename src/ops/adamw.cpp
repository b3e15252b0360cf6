#include "ops/adamw.h"

#include <bit>
#include <cmath>

#include "ops/check.h"

namespace miles {

void adamw(Exec& exec, const AdamWArgs& args) {
  const char* op = "adamw";
  check_values({op, "param", args.param}, 1);
  const Shape run = args.param.shape();
  const DType type = args.param.dtype();
  if (type == DType::bf16) check_tensor({op, "low", args.low}, DType::u16, run);
  MILES_CHECK(type == DType::bf16 || !args.low, "{}: a float32 parameter has no low half", op);
  check_tensor({op, "m", args.m}, DType::f32, run);
  check_tensor({op, "v", args.v}, DType::f32, run);
  check_tensor({op, "grad", args.grad}, type, run);
  MILES_CHECK(args.step >= 1, "{}: step {}; the first is 1", op, args.step);
  kernels(exec.device.kind()).adamw(exec, args);
}

AdamWStep<float> adamw_step(const AdamWArgs& args) {
  const auto correction = [t = static_cast<double>(args.step)](float beta) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), t));
  };
  return {.grad_scale = args.grad_scale,
          .beta1 = args.beta1,
          .beta2 = args.beta2,
          .rest1 = 1.0F - args.beta1,
          .rest2 = 1.0F - args.beta2,
          .correction1 = correction(args.beta1),
          .correction2 = correction(args.beta2),
          .eps = args.eps,
          .weight_decay = args.weight_decay,
          .negative_lr = -args.lr};
}

SplitMaster split_master(float master) {
  const auto bits = std::bit_cast<uint32_t>(master);
  if (std::isnan(master)) return {{static_cast<uint16_t>((bits >> 16) | 0x40U)}, 0};
  const uint32_t high = (bits + 0x8000U) >> 16;
  return {{static_cast<uint16_t>(high)}, static_cast<uint16_t>(bits - (high << 16))};
}

float join_master(SplitMaster split) {
  const auto low = static_cast<int16_t>(split.low);
  return std::bit_cast<float>((static_cast<uint32_t>(split.high.bits) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(low)));
}

}  // namespace miles
