// The CPU's matrix products, and which of its paths serves a bf16 product.
//   linear         f32, and bf16 without AMX: linear_dot.cpp, compiled once per instruction set
//                  bf16 with AMX: gemm_amx.cpp
//   the gradients  bf16 with AMX: linear_gradients.cpp
//                  else oneDNN: gemm_backward.cpp, in bf16 where the processor multiplies bf16,
//                  or converted
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ops/backend.h"
#include "ops/gemm.h"

namespace miles {

/// How bf16 matrices are multiplied. Every path accumulates in f32 and rounds once, and every path
/// is row-invariant, but they do not give the same bits: the choice is made once, before the first
/// product.
enum class Bf16Path {
  native,    // by the processor's bf16 instructions, where it has them; else as `converted`
  converted  // to f32 (exactly), tile by tile
};

/// "native" or "converted"; anything else throws Error{flags}.
Bf16Path parse_bf16_path(std::string_view text);
/// What the environment variable MILES_CPU_BF16 says; `native` when it is not set. Throws as
/// parsing does.
Bf16Path bf16_path();
/// For tests and benchmarks: overrides the environment.
void set_bf16_path(Bf16Path path);

/// Whether `linear_amx` serves products over `inputs` (K): the processor has AMX, the system lets
/// this process use it, K <= 65,536, and bf16_path() is native.
bool use_amx(int64_t inputs);
/// For tests: attention and the gradients of `linear` compute what they would on AMX by plain code.
void set_emulate_amx(bool emulate);
bool emulate_amx();
/// `linear` for bf16 operands. Row-invariant by construction: an element is one chain of TDPBF16PS
/// over K.
void linear_amx(Exec& exec, const LinearArgs& args);

/// What `linear_dot` needs, as plain data: its source is compiled per instruction set and must emit
/// no inline function of a shared header.
struct DotArgs {
  const void* x;            // [m, k] f32 or bf16
  const void* w;            // [n, k], as x
  void* y;                  // [m, n], as x or f32
  bool x_is_f32;            // else bf16; w too
  bool y_is_f32;            // else bf16
  int64_t m, n, k;          // extents
  std::byte* workspace;     // 64-byte aligned
  int64_t workspace_bytes;  // at least kWorkspaceBytes
};
DotArgs dot_args(const Exec& exec, const LinearArgs& args);

/// The gradients without AMX.
namespace cpu {
void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args);
void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args);
}  // namespace cpu

}  // namespace miles
