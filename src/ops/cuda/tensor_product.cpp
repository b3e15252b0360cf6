// Which of cuBLASLt's algorithms computes a product.
//
// The forward must give a row the same bits whatever the number of rows. Measured on an H200 (CUDA
// 13.0): within algorithm 66 a row's bits depend on the split along k alone, not on tile, stages or
// cluster. So there, of the unsplit configurations of algorithm 66, the fastest by timing is taken,
// for every number of rows another. On other cards nothing of the kind was measured: one
// configuration serves all numbers of rows. Both hold for the gradients too, whose bits then do not
// depend on what a timing said.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "ops/cuda/cublaslt.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace miles::cuda {
namespace {

constexpr int kHopperAlgorithm = 66;
constexpr int kOffered = 64;         // configurations that the heuristic is asked for
constexpr int kTimed = 8;            // of them, the most promising are timed
constexpr int64_t kUsualRows = 256;  // where one configuration must serve all

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

cublasStatus_t run(Exec& exec, const Product& product, const Descriptors& with,
                   const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1, beta = product.accumulate ? 1.0F : 0.0F;
  const CublasLt& lt = cublaslt();
  return lt.matmul(lt.handle, with.desc, &one, product.b.data, with.b, product.a.data, with.a,
                   &beta, product.result, with.out, product.result, with.out, &algorithm,
                   exec.workspace.data(), exec.workspace.size(), stream_of(exec));
}

template <class Value>
Value attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  Value value{};
  size_t written = 0;
  check(cublaslt().config_get(&algorithm, name, &value, sizeof value, &written),
        "reading an algorithm");
  return value;
}

bool is_hopper() {
  static const bool hopper = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "asking for the device");
    return major == 9;
  }();
  return hopper;
}

/// Configurations that may compute the product, the most promising first.
std::vector<cublasLtMatmulAlgo_t> candidates(const Exec& exec, const Descriptors& with) {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulPreference_t preference = nullptr;
  check(lt.preference_create(&preference), "describing a preference");
  const uint64_t workspace = exec.workspace.size();
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;  // no split along k
  check(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                          sizeof workspace),
        "describing a preference");
  check(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                          sizeof reduction),
        "describing a preference");
  std::vector<cublasLtMatmulHeuristicResult_t> offered(kOffered);
  int count = 0;
  const cublasStatus_t status =
      lt.heuristic(lt.handle, with.desc, with.b, with.a, with.out, with.out, preference, kOffered,
                   offered.data(), &count);
  lt.preference_destroy(preference);
  check(status, "asking for algorithms");
  std::vector<cublasLtMatmulAlgo_t> allowed;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = offered[static_cast<size_t>(i)].algo;
    if (offered[static_cast<size_t>(i)].state != CUBLAS_STATUS_SUCCESS ||
        attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1 ||
        (is_hopper() && attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID) != kHopperAlgorithm))
      continue;
    allowed.push_back(algorithm);
  }
  return allowed;
}

bool serves(const Descriptors& with, const cublasLtMatmulAlgo_t& algorithm, size_t workspace) {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulHeuristicResult_t result{};
  return lt.check(lt.handle, with.desc, with.b, with.a, with.out, with.out, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace;
}

/// Numbers of tokens that share a timing: about four classes an octave.
int64_t class_of(int64_t count) {
  int64_t step = 1;
  while (step * 8 <= count) step *= 2;
  return (count + step - 1) / step * step;
}

/// The number of tokens: rows of a forward and of an input's gradient, the depth of a weight's.
int64_t& tokens_of(Product& product) {
  return product.a.k_stride == 1 ? product.rows : product.depth;
}

Product with_tokens(Product product, int64_t count) {
  tokens_of(product) = count;
  return product;
}

Product in_its_class(Product product) {
  return with_tokens(product, is_hopper() ? class_of(tokens_of(product)) : kUsualRows);
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking whether a graph is captured");
  return status != cudaStreamCaptureStatusNone;
}

/// Milliseconds of one run, the least of a few.
class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&begin_), "making an event");
    check(cudaEventCreate(&end_), "making an event");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  template <class Work>
  float measure(cudaStream_t stream, Work&& work) {
    float least = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 4; ++i) {  // the first one warms up
      check(cudaEventRecord(begin_, stream), "recording an event");
      if (!work()) return std::numeric_limits<float>::infinity();
      check(cudaEventRecord(end_, stream), "recording an event");
      check(cudaEventSynchronize(end_), "timing a product");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a product");
      if (i > 0) least = std::min(least, milliseconds);
    }
    return least;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// What is tried must not be added to the result again and again: an accumulating product is timed
/// without its addition, and so cannot be timed in place. The choice by promise will do there.
cublasLtMatmulAlgo_t choose(Exec& exec, const Product& product, const Descriptors& with) {
  std::vector<cublasLtMatmulAlgo_t> allowed = candidates(exec, with);
  if (allowed.empty()) {  // too few rows for the heuristic to think of them
    const Descriptors usual(with_tokens(product, kUsualRows));
    allowed = candidates(exec, usual);
    std::erase_if(allowed, [&](const cublasLtMatmulAlgo_t& algorithm) {
      return !serves(with, algorithm, exec.workspace.size());
    });
  }
  if (allowed.empty())
    fail(ErrorCode::device,
         "cuBLASLt offers no unsplit algorithm {}for a product of {} x {} x {} on this card; "
         "pass --dtype float32 or --device cpu",
         is_hopper() ? "66 " : "", product.rows, product.columns, product.depth);
  const cudaStream_t stream = stream_of(exec);
  if (!is_hopper() || product.accumulate || capturing(stream)) return allowed.front();
  allowed.resize(std::min<size_t>(allowed.size(), kTimed));
  Timer timer;
  float least = std::numeric_limits<float>::infinity();
  cublasLtMatmulAlgo_t best = allowed.front();
  for (const cublasLtMatmulAlgo_t& algorithm : allowed) {
    const float time = timer.measure(
        stream, [&] { return run(exec, product, with, algorithm) == CUBLAS_STATUS_SUCCESS; });
    if (time >= least) continue;
    least = time;
    best = algorithm;
  }
  return best;
}

/// The kind of product, its extents apart from the number of tokens, and that number (or its
/// class).
using Key = std::tuple<bool, bool, DType, int64_t, int64_t, int64_t>;

Key key_of(const Product& product) {
  return {product.a.k_stride == 1,
          product.b.k_stride == 1,
          product.out,
          product.rows,
          product.columns,
          product.depth};
}

/// Of the main thread alone, as all ops are.
std::map<Key, cublasLtMatmulAlgo_t>& chosen() {
  static std::map<Key, cublasLtMatmulAlgo_t> table;
  return table;
}

const cublasLtMatmulAlgo_t& algorithm_for(Exec& exec, const Product& product,
                                          const Descriptors& with) {
  const Key exact = key_of(product);
  if (const auto found = chosen().find(exact); found != chosen().end()) return found->second;
  const Key usual = key_of(in_its_class(product));
  const auto shared = chosen().find(usual);
  if (shared != chosen().end() && serves(with, shared->second, exec.workspace.size()))
    return chosen()[exact] = shared->second;
  if (!is_hopper()) {
    const Descriptors of_class(in_its_class(product));
    const cublasLtMatmulAlgo_t one = choose(exec, in_its_class(product), of_class);
    if (!serves(with, one, exec.workspace.size()))
      fail(ErrorCode::device, "cuBLASLt: one algorithm cannot serve {} and {} rows alike",
           kUsualRows, product.rows);
    return chosen()[exact] = chosen()[usual] = one;
  }
  const cublasLtMatmulAlgo_t algorithm = choose(exec, product, with);
  if (!capturing(stream_of(exec))) chosen()[usual] = algorithm;
  return chosen()[exact] = algorithm;
}

}  // namespace

void tensor_product(Exec& exec, const Product& product) {
  for (const void* const data :
       {product.a.data, product.b.data, static_cast<const void*>(product.result)})
    MILES_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0,
                "a matrix at {}, not at a multiple of 16", data);
  const Descriptors with(product);
  check(run(exec, product, with, algorithm_for(exec, product, with)), "computing a product");
}

}  // namespace miles::cuda
