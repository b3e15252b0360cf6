// The one matrix product that a linear layer's forward and both gradients are, and the two ways to
// compute it.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles::cuda {

/// A matrix operand of the product: element (row, k) of an operand with `rows` rows is
/// data[row · row_stride + k · k_stride]; one of the strides is 1.
struct Operand {
  const void* data = nullptr;
  int64_t row_stride = 0;  // elements
  int64_t k_stride = 0;    // elements
};

/// out[i, j] = Σ_k a(i, k) · b(j, k) (+ out[i, j]), i < rows, j < columns, k < depth; accumulated
/// in f32 and rounded once. `out` is row-major.
struct Product {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  Operand a;
  Operand b;
  DType in = DType::f32;   // of a and b: f32 or bf16
  DType out = DType::f32;  // the same or f32
  void* result = nullptr;
  bool accumulate = false;
  RowBits row_bits = RowBits::invariant;
};

/// On CUDA cores, any shape and type: every element is one chain of fused multiply-adds over
/// ascending k, so its bits depend on its row of a and its row of b alone.
void simt_product(Exec& exec, const Product& product);

inline constexpr uint32_t kProductAlignment = 16;  // bytes

/// On tensor cores, by cuBLASLt: bf16 operands whose rows, as they lie in memory, and a result that
/// start at multiples of kProductAlignment. Where rows are invariant it is never split along k: an
/// element's bits depend on its row of a and its row of b alone (tests/ops/gemm_test.cpp asserts it on
/// the card at hand).
void tensor_product(Exec& exec, const Product& product);

}  // namespace miles::cuda
