// Which of cuBLASLt's algorithms computes a product.
//
// The forward must give a row the same bits whatever the number of rows. Measured on an H200
// (cuBLASLt 13.1): within algorithm 66 a row's bits depend on the split along k alone, not on tile, stages or
// cluster. So there, of the unsplit configurations of algorithm 66, the fastest by timing is taken,
// for every number of rows another. With other cards and versions nothing of the kind was
// measured (is_measured()): one configuration serves all numbers of rows. (A pinned cut of k in two was tried: with weights
// [4096, 12288] it takes 51 µs where the uncut product of 256 rows takes 44, and many rows do not
// fit its workspace.)
//
// A gradient's rows need not be invariant, and unsplit it would leave most of the card idle where
// the result is small and the sum long (the head's input gradient). But its bits must be a function
// of its extents: not of what was computed before, nor of what a timing said. So the heuristic says
// algorithm, split and how the parts are summed; timing only chooses among configurations that
// share all three, and only in algorithm 66, where that was seen to change no bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "ops/cuda/cold_cache.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"
#include "ops/cuda/product_algorithms.h"

namespace miles::cuda {
namespace {

constexpr int kTimed = 8;              // so many of the most promising configurations are timed,
constexpr float kTimedMs = 40;         // and more while all runs together take no longer than this
constexpr int64_t kUsualRows = 256;    // where one configuration must serve all
constexpr int64_t kFinelyTimed = 256;  // tokens up to which every tile of eight is timed anew

cublasStatus_t run(Exec& exec, const Product& product, const Descriptors& with,
                   const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1, beta = product.accumulate ? 1.0F : 0.0F;
  const CublasLt& lt = cublaslt();
  return lt.matmul(lt.handle, with.desc, &one, product.b.data, with.b, product.a.data, with.a,
                   &beta, product.result, with.out, product.result, with.out, &algorithm,
                   exec.workspace.data(), exec.workspace.size(), stream_of(exec));
}

/// Numbers of tokens that share a timing: few ones when they fill as many of the narrowest tiles,
/// of eight (with more than were timed a tile that just held those is nearly empty once more, and
/// the product takes half as long again); many ones in four to eight classes an octave.
int64_t class_of(int64_t count) {
  int64_t step = 8;
  while (count > kFinelyTimed && step * 8 <= count) step *= 2;
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

/// The product that stands for all that share its algorithm where they can.
Product in_its_class(Product product) {
  const bool one_for_all = product.row_bits == RowBits::invariant && !is_measured();
  return with_tokens(product, one_for_all ? kUsualRows : class_of(tokens_of(product)));
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking whether a graph is captured");
  return status != cudaStreamCaptureStatusNone;
}

/// Milliseconds of one run, the median of a few. In front of each one the workspace is read, so
/// that it finds its operands in memory, as in a step, and not in the L2, and that the host has
/// enqueued it when it may start.
class Timer {
 public:
  explicit Timer(const Exec& exec) : exec_(exec), stream_(stream_of(exec)) {
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
  float measure(Work&& work) {
    std::array<float, kRuns> times{};
    for (float& milliseconds : times) {
      fill_cache_with_workspace(exec_);
      check(cudaEventRecord(begin_, stream_), "recording an event");
      if (!work()) return std::numeric_limits<float>::infinity();
      check(cudaEventRecord(end_, stream_), "recording an event");
      check(cudaEventSynchronize(end_), "timing a product");
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a product");
    }
    std::ranges::sort(times);
    return times[kRuns / 2];
  }
  static constexpr int kRuns = 5;

 private:
  const Exec& exec_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// By timing the first few, which overwrites the product's result.
cublasLtMatmulAlgo_t fastest(Exec& exec, const Product& product, const Descriptors& with,
                             const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  Timer timer(exec);
  float least = std::numeric_limits<float>::infinity(), spent = 0;
  cublasLtMatmulAlgo_t best = algorithms.front();
  for (size_t i = 0; i < algorithms.size() && (i < kTimed || spent < kTimedMs); ++i) {
    const float time = timer.measure(
        [&] { return run(exec, product, with, algorithms[i]) == CUBLAS_STATUS_SUCCESS; });
    if (std::isfinite(time)) spent += time * Timer::kRuns;
    if (time >= least) continue;
    least = time;
    best = algorithms[i];
  }
  return best;
}

/// What may compute a product.
struct Choice {
  std::vector<cublasLtMatmulAlgo_t> algorithms;  // at least one; the most promising first
  bool same_bits = false;  // whichever is taken: a timing may say which; else the first is
  bool of_class = true;    // what is taken is right for the product's class, too
};

/// The one algorithm for all numbers of rows: few, as in decode, and many.
Choice one_for_all_rows(Exec& exec, const Product& product, const Descriptors& with) {
  const Product usual = in_its_class(product);
  std::vector<cublasLtMatmulAlgo_t> allowed = candidates(exec, usual, Descriptors(usual));
  std::erase_if(allowed, [&](const cublasLtMatmulAlgo_t& algorithm) {
    return !std::ranges::all_of(std::array<int64_t, 4>{1, 8, 64, 8192}, [&](int64_t rows) {
      return serves(Descriptors(with_tokens(product, rows)), algorithm, exec.workspace.size());
    });
  });
  if (allowed.empty() || !serves(with, allowed.front(), exec.workspace.size()))
    fail(
        ErrorCode::device,
        "cuBLASLt has no unsplit algorithm for both few and many rows ({} among them) of a product "
        "with {} x {} weights on this card; pass --dtype float32 or --device cpu",
        product.rows, product.columns, product.depth);
  return {.algorithms = {allowed.front()}};
}

Choice for_invariant_rows(Exec& exec, const Product& product, const Descriptors& with) {
  if (!is_measured()) return one_for_all_rows(exec, product, with);
  std::vector<cublasLtMatmulAlgo_t> allowed = candidates(exec, product, with);
  if (allowed.empty()) {  // too few rows for the heuristic to think of them
    const Product usual = with_tokens(product, kUsualRows);
    allowed = candidates(exec, usual, Descriptors(usual));
    std::erase_if(allowed, [&](const cublasLtMatmulAlgo_t& algorithm) {
      return !serves(with, algorithm, exec.workspace.size());
    });
  }
  if (allowed.empty())
    fail(ErrorCode::device,
         "cuBLASLt offers no unsplit algorithm {} for a product of {} x {} x {} on this card; pass "
         "--dtype float32 or --device cpu",
         kMeasuredAlgorithm, product.rows, product.columns, product.depth);
  return {.algorithms = std::move(allowed), .same_bits = true};
}

Choice for_gradient(Exec& exec, const Product& product, const Descriptors& with) {
  const auto usable = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return serves(with, algorithm, exec.workspace.size());
  };
  // The kind comes from the class, so that it does not matter who of it comes first.
  const Product usual = in_its_class(product);
  auto allowed = gradient_candidates(usual, Descriptors(usual));
  const Kind kind = allowed.empty() ? Kind{} : kind_of(allowed.front());
  const bool first_serves = !allowed.empty() && usable(allowed.front());
  std::erase_if(allowed, [&](const cublasLtMatmulAlgo_t& algorithm) {
    return kind_of(algorithm) != kind || !usable(algorithm);
  });
  // Where k is split, a tile may move the parts' bounds.
  const bool same_bits = is_measured() && kind.algorithm == kMeasuredAlgorithm && kind.splits <= 1;
  if (!allowed.empty())
    return {.algorithms = std::move(allowed),
            .same_bits = same_bits,
            .of_class = same_bits || first_serves};  // not what one had to make do with
  allowed = gradient_candidates(product, with);
  if (allowed.empty())
    fail(ErrorCode::device,
         "cuBLASLt offers no deterministic algorithm for a gradient of {} x {} x {} on this card; "
         "pass --dtype float32 or --device cpu",
         product.rows, product.columns, product.depth);
  return {.algorithms = std::move(allowed), .of_class = false};
}

/// The kind of product and its extents.
using Key = std::tuple<RowBits, bool, bool, DType, int64_t, int64_t, int64_t>;

Key key_of(const Product& product) {
  return {product.row_bits,
          product.a.k_stride == 1,
          product.b.k_stride == 1,
          product.out,
          product.rows,
          product.columns,
          product.depth};
}

/// What was chosen. Of the main thread alone, as all ops are.
struct Table {
  struct Entry {
    cublasLtMatmulAlgo_t algorithm{};
    bool final = false;  // no: a timing was due, and could not be made
  };
  std::map<Key, Entry> products;                   // by a product's own extents
  std::map<Key, cublasLtMatmulAlgo_t> of_classes;  // by those of the product that stands for it
};

const cublasLtMatmulAlgo_t& algorithm_for(Exec& exec, const Product& product,
                                          const Descriptors& with) {
  static Table table;
  // Trying a product that is added to its result would change that.
  const auto can_time = [&] { return !product.accumulate && !capturing(stream_of(exec)); };
  const Key key = key_of(product);
  const auto known = table.products.find(key);
  if (known != table.products.end() && (known->second.final || !can_time()))
    return known->second.algorithm;
  const Key class_key = key_of(in_its_class(product));
  const auto shared = table.of_classes.find(class_key);
  if (shared != table.of_classes.end() && serves(with, shared->second, exec.workspace.size()))
    return (table.products[key] = {.algorithm = shared->second, .final = true}).algorithm;
  const Choice choice = product.row_bits == RowBits::invariant
                            ? for_invariant_rows(exec, product, with)
                            : for_gradient(exec, product, with);
  const bool timed = choice.same_bits && can_time();
  const Table::Entry entry = {.algorithm = timed ? fastest(exec, product, with, choice.algorithms)
                                                 : choice.algorithms.front(),
                              .final = timed || !choice.same_bits};
  if (entry.final && choice.of_class) table.of_classes[class_key] = entry.algorithm;
  return (table.products[key] = entry).algorithm;
}

}  // namespace

void tensor_product(Exec& exec, const Product& product) {
  for (const void* const data :
       {product.a.data, product.b.data, static_cast<const void*>(product.result)})
    MILES_CHECK(reinterpret_cast<uintptr_t>(data) % kProductAlignment == 0,
                "a matrix at {}, not at a multiple of {}", data, kProductAlignment);
  const Descriptors with(product);
  check(run(exec, product, with, algorithm_for(exec, product, with)), "computing a product");
}

}  // namespace miles::cuda
