#include "ops/gemm.h"

#include "ops/cuda/backend.h"
#include "ops/cuda/product.h"

namespace miles::cuda {
namespace {

constexpr int64_t kLeast = 64;  // extents below which tensor cores have nothing to win

/// Which way depends on the weight's shape [n, k] and type alone: a token meets the same kernel
/// family in rollout and in training.
void compute(Exec& exec, const Product& product, int64_t n, int64_t k) {
  if (product.rows == 0 || product.columns == 0) return;
  // cuBLASLt rounds a product to bf16 before it adds it to bf16 (seen on an H200), which is once
  // too often.
  const bool rounds_once = !product.accumulate || product.out == DType::f32;
  if (product.in == DType::bf16 && rounds_once && n % 8 == 0 && k % 8 == 0 && n >= kLeast &&
      k >= kLeast)
    tensor_product(exec, product);
  else
    simt_product(exec, product);
}

}  // namespace

void linear(Exec& exec, const LinearArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  compute(exec,
          {.rows = m,
           .columns = n,
           .depth = k,
           .a = {args.x.data(), k, 1},
           .b = {args.w.data(), k, 1},
           .in = args.x.dtype(),
           .out = args.y.dtype(),
           .result = args.y.data(),
           .row_bits = exec.row_bits},
          n, k);
}

void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args) {
  const int64_t m = args.dy.dim(0), n = args.dy.dim(1), k = args.w.dim(1);
  compute(exec,
          {.rows = m,
           .columns = k,
           .depth = n,
           .a = {args.dy.data(), n, 1},
           .b = {args.w.data(), 1, k},
           .in = args.dy.dtype(),
           .out = args.dx.dtype(),
           .result = args.dx.data(),
           .accumulate = args.accumulate == Accumulate::yes,
           .row_bits = RowBits::of_extents},
          n, k);
}

void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args) {
  const int64_t m = args.dy.dim(0), n = args.dy.dim(1), k = args.x.dim(1);
  if (m == 0) return;
  compute(exec,
          {.rows = n,
           .columns = k,
           .depth = m,
           .a = {args.dy.data(), 1, n},
           .b = {args.x.data(), 1, k},
           .in = args.dy.dtype(),
           .out = args.dw.dtype(),
           .result = args.dw.data(),
           .accumulate = args.accumulate == Accumulate::yes,
           .row_bits = RowBits::of_extents},
          n, k);
}

}  // namespace miles::cuda
