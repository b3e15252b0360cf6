// AdamW on a run of parameters. Source: Loshchilov & Hutter 2019 (arXiv:1711.05101), alg. 2.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// g = grad · grad_scale;  m = β1·m + (1−β1)·g;  v = β2·v + (1−β2)·g²;
/// master −= lr · ((m / (1−β1^t)) / (√(v / (1−β2^t)) + eps) + weight_decay · master).
/// With bf16 parameters the f32 master is kept as (param, low): bits = (hi << 16) + int16(low),
/// where hi is the master rounded to nearest; the two together are the master, exactly. With f32
/// parameters the parameter is the master and `low` is empty. Elementwise: any split of a run gives
/// the same bits.
struct AdamWArgs {
  Tensor param;          // [n] f32 or bf16, updated
  Tensor low;            // [n] u16 (an int16's bits), updated; empty with f32 parameters
  Tensor m;              // [n] f32, updated
  Tensor v;              // [n] f32, updated
  Tensor grad;           // [n] same type as param
  float grad_scale = 1;  // clipping and averaging
  float lr = 0;          // learning rate of this step
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float eps = 1e-8F;
  float weight_decay = 0;
  int64_t step = 1;  // t, from 1
};
void adamw(Exec& exec, const AdamWArgs& args);

/// What every element of a run shares. `Value`: float, or a vector of equal ones.
template <class Value>
struct AdamWStep {
  Value grad_scale, beta1, beta2, rest1, rest2;  // rest: 1 − β
  Value correction1, correction2;                // 1 − β^t
  Value eps, weight_decay, negative_lr;
};
/// For the kernels: the powers in f64, on the host, the same on every device.
AdamWStep<float> adamw_step(const AdamWArgs& args);

/// Splits an f32 master into its bf16 rounding and the low half, and back.
struct SplitMaster {
  BFloat16 high;  // rounded to nearest
  uint16_t low;   // int16 bits
};
SplitMaster split_master(float master);
float join_master(SplitMaster split);

}  // namespace miles
