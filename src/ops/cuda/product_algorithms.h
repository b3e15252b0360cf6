// Which of cuBLASLt's algorithms may compute a product; tensor_product.cpp chooses among them.
#pragma once

#include <vector>

#include "ops/cuda/cublaslt.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace miles::cuda {

/// The algorithm whose bits were measured.
inline constexpr int kMeasuredAlgorithm = 66;

/// cuBLASLt's descriptors of a product. It thinks in columns: what we write row by row is, to it,
/// the transpose, so that our b comes first.
class Descriptors {
 public:
  explicit Descriptors(const Product& product) : lt_(cublaslt()) {
    check(lt_.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    const cublasOperation_t first = product.b.k_stride == 1 ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = product.a.k_stride == 1 ? CUBLAS_OP_N : CUBLAS_OP_T;
    check(lt_.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
          "describing a product");
    check(lt_.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
          "describing a product");
    b = operand(product.b, product.columns, product);
    a = operand(product.a, product.rows, product);
    out = layout(product.out, product.columns, product.rows, product.columns);
  }
  ~Descriptors() {
    for (const cublasLtMatrixLayout_t layout : {a, b, out}) lt_.layout_destroy(layout);
    lt_.desc_destroy(desc);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, out = nullptr;

 private:
  cublasLtMatrixLayout_t layout(DType type, int64_t rows, int64_t columns, int64_t stride) const {
    cublasLtMatrixLayout_t made = nullptr;
    check(lt_.layout_create(&made, type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF,
                            static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
          "describing a matrix");
    return made;
  }
  cublasLtMatrixLayout_t operand(const Operand& operand, int64_t rows,
                                 const Product& product) const {
    return operand.k_stride == 1 ? layout(product.in, product.depth, rows, operand.row_stride)
                                 : layout(product.in, rows, product.depth, operand.k_stride);
  }

  const CublasLt& lt_;
};

/// As far as a configuration decides a product's bits, this does.
struct Kind {
  int32_t algorithm = 0, splits = 0;
  uint32_t reduction = 0;
  bool operator==(const Kind&) const = default;
};
Kind kind_of(const cublasLtMatmulAlgo_t& algorithm);

/// Whether this card's architecture and this library's version are those that were measured. Where
/// only the library is another, a warning says so once. MILES_CUDA_UNMEASURED=1 makes it false, to run
/// here what other cards run.
bool is_measured();

/// Whether the algorithm can compute the product in so many bytes of workspace.
bool serves(const Descriptors& with, const cublasLtMatmulAlgo_t& algorithm, size_t workspace);

/// Configurations that may compute a product whose rows are invariant; the heuristic's most
/// promising first.
std::vector<cublasLtMatmulAlgo_t> candidates(const Exec& exec, const Product& product,
                                             const Descriptors& with);

/// Configurations that may compute a gradient: parts along k are kept in the workspace, in f32, and
/// summed in order.
std::vector<cublasLtMatmulAlgo_t> gradient_candidates(const Product& product,
                                                      const Descriptors& with);

}  // namespace miles::cuda
