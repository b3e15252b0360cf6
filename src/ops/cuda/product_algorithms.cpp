#include "ops/cuda/product_algorithms.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/log.h"

namespace miles::cuda {
namespace {

constexpr size_t kMeasuredVersion =
    1301;  // of cuBLASLt: 13.1, which the later updates of CUDA 13.0 have

constexpr int kOffered = 64;  // configurations that the heuristic is asked for

template <class Value>
Value attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  Value value{};
  size_t written = 0;
  check(cublaslt().config_get(&algorithm, name, &value, sizeof value, &written),
        "reading an algorithm");
  return value;
}

/// What the heuristic offers for a product whose parts along k, if any, are summed in one of these
/// ways; the most promising first.
std::vector<cublasLtMatmulAlgo_t> offers(const Descriptors& with, uint64_t workspace,
                                         uint32_t reductions) {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulPreference_t preference = nullptr;
  check(lt.preference_create(&preference), "describing a preference");
  check(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                          sizeof workspace),
        "describing a preference");
  check(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                          sizeof reductions),
        "describing a preference");
  const uint32_t alignment = kProductAlignment;
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    check(lt.preference_set(preference, attribute, &alignment, sizeof alignment),
          "describing a preference");
  std::vector<cublasLtMatmulHeuristicResult_t> results(kOffered);
  int count = 0;
  const cublasStatus_t status =
      lt.heuristic(lt.handle, with.desc, with.b, with.a, with.out, with.out, preference, kOffered,
                   results.data(), &count);
  lt.preference_destroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    count = 0;  // none
  else
    check(status, "asking for algorithms");
  std::vector<cublasLtMatmulAlgo_t> offered;
  for (int i = 0; i < count; ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      offered.push_back(results[static_cast<size_t>(i)].algo);
  return offered;
}

/// A configuration of the measured algorithm, as cuBLASLt numbers it.
struct Configuration {
  uint32_t tile;     // CUBLASLT_ALGO_CONFIG_TILE_ID
  uint16_t cluster;  // CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
  uint32_t custom;   // CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION
};
/// For few rows the heuristic offers one to three configurations, and none of the best. Of all 3,168
/// that a product of 16 or 64 rows with weights [4096, 12288] or [1024, 3072] can have, these were
/// the fastest on an H200, and all gave the same bits: 28 µs where the best one offered takes 52.
constexpr Configuration kForFewRows[] = {{10, 2, 1}, {10, 3, 1}, {10, 5, 3},  {13, 2, 1},
                                         {13, 4, 1}, {13, 5, 3}, {15, 2, 0},  {15, 4, 2},
                                         {7, 2, 2},  {47, 3, 0}, {312, 2, 1}, {312, 3, 1}};
constexpr int64_t kFewRows = 128;

template <class Value>
void set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name, Value value) {
  check(cublaslt().config_set(&algorithm, name, &value, sizeof value), "configuring an algorithm");
}

/// Those of kForFewRows that can compute the product.
std::vector<cublasLtMatmulAlgo_t> configured(const Exec& exec, const Product& product,
                                             const Descriptors& with) {
  const CublasLt& lt = cublaslt();
  const cudaDataType_t out = product.out == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
  std::vector<cublasLtMatmulAlgo_t> result;
  for (const Configuration& configuration : kForFewRows) {
    cublasLtMatmulAlgo_t algorithm;
    check(lt.algo_init(lt.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, out,
                       out, kMeasuredAlgorithm, &algorithm),
          "making an algorithm");
    set(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, configuration.tile);
    set(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID,
        static_cast<uint32_t>(CUBLASLT_MATMUL_STAGES_64xAUTO));
    set(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, configuration.cluster);
    set(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, configuration.custom);
    if (serves(with, algorithm, exec.workspace.size())) result.push_back(algorithm);
  }
  return result;
}

}  // namespace

Kind kind_of(const cublasLtMatmulAlgo_t& algorithm) {
  return {attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
          attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)};
}

bool is_measured() {
  static const bool measured = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "asking for the device");
    if (major != 9 || std::getenv("MILES_CUDA_UNMEASURED") != nullptr) return false;
    const size_t version = cublaslt().version() / 100;
    if (version != kMeasuredVersion)
      log::warn(
          "cuBLASLt {}.{} is not the one whose bits were measured, {}.{}: one algorithm serves all "
          "numbers of rows, which is slower",
          version / 100, version % 100, kMeasuredVersion / 100, kMeasuredVersion % 100);
    return version == kMeasuredVersion;
  }();
  return measured;
}

bool serves(const Descriptors& with, const cublasLtMatmulAlgo_t& algorithm, size_t workspace) {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulHeuristicResult_t result{};
  return lt.check(lt.handle, with.desc, with.b, with.a, with.out, with.out, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace;
}

std::vector<cublasLtMatmulAlgo_t> candidates(const Exec& exec, const Product& product,
                                             const Descriptors& with) {
  auto allowed = offers(with, exec.workspace.size(), CUBLASLT_REDUCTION_SCHEME_NONE);
  std::erase_if(allowed, [](const cublasLtMatmulAlgo_t& algorithm) {
    const Kind kind = kind_of(algorithm);
    return kind.splits > 1 || (is_measured() && kind.algorithm != kMeasuredAlgorithm);
  });
  if (is_measured() && product.rows <= kFewRows)
    std::ranges::copy(configured(exec, product, with), std::back_inserter(allowed));
  return allowed;
}

std::vector<cublasLtMatmulAlgo_t> gradient_candidates(const Product& product,
                                                      const Descriptors& with) {
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (product.out == DType::f32) reductions |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  auto allowed = offers(with, kCudaWorkspaceBytes, reductions);
  std::erase_if(allowed, [&](const cublasLtMatmulAlgo_t& algorithm) {
    const Kind kind = kind_of(algorithm);
    return kind.splits > 1 && (kind.reduction & reductions) == 0;
  });
  return allowed;
}

}  // namespace miles::cuda
