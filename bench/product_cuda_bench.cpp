// What it costs that a row's bits do not depend on the number of rows: a forward product on a GPU
// as the program computes it, beside the same product with cuBLASLt unrestricted.
//   product_cuda_bench --weights 4096x12288,4096x4096 --rows 64,256,8192 --head 151936x4096
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "bench/bench_main.h"
#include "memory/region.h"
#include "ops/gemm.h"

namespace miles::bench {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;  // weights take turns: none is in a cache
constexpr int64_t kNumbers = int64_t{700} << 20;     // bf16, as many as the largest weights have
constexpr int64_t kResultBytes = int64_t{2} << 30;
constexpr int kRuns = 5;

struct Shape {
  int64_t n = 0, k = 0;  // outputs, inputs
};

class Bench {
 public:
  Bench() {
    for (Region* const region : {&numbers_, &result_, &workspace_}) region->commit();
    std::vector<uint16_t> block(size_t{1} << 20);
    for (size_t i = 0; i < block.size(); ++i)  // bf16 in ±[2^−3, 1)
      block[i] = static_cast<uint16_t>((uniform_below(2, 1, RngUse::test, i, 0) << 15) |
                                       ((124 + uniform_below(3, 1, RngUse::test, i, 1)) << 7) |
                                       uniform_below(128, 1, RngUse::test, i, 2));
    for (int64_t at = 0; at < kNumbers; at += std::ssize(block))
      stream_->copy(numbers_.data() + at * 2, block.data(), std::ssize(block) * 2);
    stream_->synchronize();
  }

  /// Seconds of one product of m rows, the least of a few runs.
  double seconds(Shape shape, int64_t m, DType out, RowBits row_bits) {
    exec_.row_bits = row_bits;
    const int64_t weights = shape.n * shape.k;
    const int64_t copies = std::clamp<int64_t>(kCacheBytes / (weights * 2), 1, 64);
    const int64_t calls = std::max<int64_t>(copies, 8);
    const Tensor x = numbers_.tensor(DType::bf16, {m, shape.k});
    const Tensor y = result_.tensor(out, {m, shape.n});
    const auto work = [&] {
      for (int64_t i = 0; i < calls; ++i)
        linear(exec_, {.x = x,
                       .w = numbers_.tensor(DType::bf16, {shape.n, shape.k},
                                            i % copies * weights * size_of(DType::bf16)),
                       .y = y});
    };
    work();  // chooses the algorithm
    const auto graph = stream_->capture(work);
    double least = 1e300;
    for (int run = 0; run < kRuns; ++run) {
      stream_->synchronize();
      const Stopwatch watch;
      graph->launch();
      stream_->synchronize();
      least = std::min(least, watch.seconds());
    }
    return least / static_cast<double>(calls);
  }

 private:
  std::unique_ptr<Device> device_ = make_cuda_device();
  Ledger ledger_;
  Memory memory_{*device_, ledger_};
  std::unique_ptr<Stream> stream_ = device_->make_stream(StreamUse::compute);
  Region numbers_{memory_, Place::device, "bench", kNumbers* size_of(DType::bf16)};
  Region result_{memory_, Place::device, "bench", kResultBytes};
  Region workspace_{memory_, Place::device, "bench", kCudaWorkspaceBytes};
  Exec exec_{.device = *device_,
             .stream = *stream_,
             .workspace = {workspace_.data(), static_cast<size_t>(kCudaWorkspaceBytes)}};
};

Shape shape_of(const std::string& text) {
  const size_t x = text.find('x');
  if (x == std::string::npos)
    fail(ErrorCode::flags, "{}: write outputs x inputs, 4096x12288", text);
  return {std::stoll(text.substr(0, x)), std::stoll(text.substr(x + 1))};
}

int run(int argc, char** argv) {
  CLI::App app("Products with and without invariant rows");
  std::vector<std::string> weights = {"6144x4096", "4096x4096", "24576x4096", "4096x12288"};
  std::vector<std::string> heads = {"151936x4096"};
  std::vector<int64_t> rows = {16, 64, 256, 8192}, head_rows = {16, 64, 256, 1024};
  app.add_option("--weights", weights, "outputs x inputs; bf16 results")->delimiter(',');
  app.add_option("--head", heads, "the same; f32 results")->delimiter(',');
  app.add_option("--rows", rows)->delimiter(',');
  app.add_option("--head-rows", head_rows)->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  Bench bench;
  fmt::print("{:>16}{:>8}{:>6}{:>14}{:>18}{:>8}{:>10}\n", "weights", "rows", "out", "invariant us",
             "unrestricted us", "ratio", "TFLOP/s");
  const auto line = [&](const std::string& text, int64_t m, DType out) {
    const Shape shape = shape_of(text);
    const double with = bench.seconds(shape, m, out, RowBits::invariant),
                 without = bench.seconds(shape, m, out, RowBits::of_extents);
    fmt::print("{:>16}{:>8}{:>6}{:>14.1f}{:>18.1f}{:>8.3f}{:>10.0f}\n", text, m,
               out == DType::f32 ? "f32" : "bf16", 1e6 * with, 1e6 * without, with / without,
               2e-12 * static_cast<double>(m * shape.n * shape.k) / with);
  };
  for (const std::string& text : weights)
    for (const int64_t m : rows) line(text, m, DType::bf16);
  for (const std::string& text : heads)
    for (const int64_t m : head_rows) line(text, m, DType::f32);
  return 0;
}

}  // namespace
}  // namespace miles::bench

int main(int argc, char** argv) {
  return miles::bench::run_main([&] { return miles::bench::run(argc, argv); });
}
