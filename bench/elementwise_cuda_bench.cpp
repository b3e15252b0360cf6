// The ops around a GPU's matrix products, one at a time, at the extents that models have: what a
// launch takes, how that compares to copying as many bytes, and a hash of what it computed, by
// which two builds can be compared to the bit.
//   elementwise_cuda_bench --only qkv_split
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "bench/bench_main.h"
#include "memory/arena.h"
#include "memory/region.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"
#include "ops/log_prob.h"
#include "ops/qkv_split.h"
#include "ops/rms_norm.h"
#include "ops/sample.h"
#include "ops/swiglu.h"

namespace miles::bench {
namespace {

constexpr int64_t kBytes = int64_t{3} << 30;  // the largest case's tensors
constexpr int64_t kPositions = 4096;
constexpr int kRuns = 5;
constexpr float kEps = 1e-6F;

/// One call of an op on tensors of the bench.
struct Case {
  std::string name;
  int64_t bytes = 0;  // read and written
  std::function<void(Exec&)> work;
  std::vector<Tensor> results;  // what is hashed after the first call
};

struct Heads {
  int64_t query, key, dim;
  int64_t row() const { return (query + 2 * key) * dim; }
};

class Bench {
 public:
  Bench() {
    for (Region* const region : {&memory_region_, &workspace_}) region->commit();
    block_.resize(size_t{1} << 20);
    for (size_t i = 0; i < block_.size(); ++i)  // bf16 in ±[2^−3, 1), f32 as well
      block_[i] = static_cast<uint16_t>((uniform_below(2, 1, RngUse::test, i, 0) << 15) |
                                        ((124 + uniform_below(3, 1, RngUse::test, i, 1)) << 7) |
                                        uniform_below(128, 1, RngUse::test, i, 2));
  }

  /// Seconds in which a copy moves so many bytes, half of them read, half written.
  double copy_seconds(int64_t bytes) {
    std::byte* const base = memory_region_.data();
    return seconds([&](Exec&) { stream_->copy(base, base + kBytes / 2, bytes / 2); }, bytes);
  }

  /// Numbers everywhere: what a case starts from.
  void fill() {
    const auto block = static_cast<int64_t>(block_.size() * sizeof block_[0]);
    stream_->copy(memory_region_.data(), block_.data(), block);
    for (int64_t done = block; done < kBytes; done *= 2)
      stream_->copy(memory_region_.data() + done, memory_region_.data(),
                    std::min(done, kBytes - done));
    arena_ = Arena(memory_region_.data(), kBytes);
  }
  Tensor tensor(DType dtype, Shape shape) { return arena_.allocate(dtype, shape); }
  Tensor bf16(Shape shape) { return tensor(DType::bf16, shape); }
  Tensor f32(Shape shape) { return tensor(DType::f32, shape); }
  Tensor integers(int64_t count, const std::function<int64_t(int64_t)>& value) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<int32_t>(value(i)));
    const Tensor to = tensor(DType::i32, {count});
    stream_->copy(to.data(), values.data(), to.bytes());
    stream_->synchronize();  // the copy may read them until then
    return to;
  }
  Tensor zeros(Shape shape) {
    const Tensor to = f32(shape);
    stream_->fill_zero(to.data(), to.bytes());
    return to;
  }
  Tensor ones(int64_t count) {
    const std::vector<float> values(static_cast<size_t>(count), 1.0F);
    const Tensor to = f32({count});
    stream_->copy(to.data(), values.data(), to.bytes());
    stream_->synchronize();  // the copy may read them until then
    return to;
  }
  Tensor sample_rows(int64_t count, const SampleRow& row) {
    std::vector<SampleRow> rows(static_cast<size_t>(count), row);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].uniform = uniform(4, RngUse::test, i, 0);
    const Tensor to = tensor(DType::u8, {count * static_cast<int64_t>(sizeof(SampleRow))});
    stream_->copy(to.data(), rows.data(), to.bytes());
    stream_->synchronize();  // the copy may read them until then
    return to;
  }

  void line(const Case& one) {
    one.work(exec_);
    uint64_t hash = 14695981039346656037U;  // FNV-1a over words
    for (const Tensor& result : one.results) {
      std::vector<uint32_t> words(static_cast<size_t>(result.bytes() / 4));
      stream_->copy(words.data(), result.data(), result.bytes());
      stream_->synchronize();
      for (const uint32_t word : words) hash = (hash ^ word) * 1099511628211U;
    }
    const double time = seconds(one.work, one.bytes);
    fmt::print("{:<40}{:>10.1f}{:>10.2f}{:>10.0f}{:>10.2f}  {:016x}\n", one.name,
               1e-6 * static_cast<double>(one.bytes), 1e6 * time,
               1e-9 * static_cast<double>(one.bytes) / time,
               static_cast<double>(one.bytes) / copy_rate_ / time, hash);
  }

  void measure_copies() {
    constexpr int64_t kCopied = int64_t{1} << 30;
    copy_rate_ = static_cast<double>(kCopied) / copy_seconds(kCopied);
    fmt::print(
        "copies of {} MiB: {:.0f} GB/s read and written\n\n{:<40}{:>10}{:>10}{:>10}{:>10}  {}\n",
        kCopied >> 21, 1e-9 * copy_rate_, "op", "MB", "us", "GB/s", "of copy", "bits");
  }

 private:
  /// Of one call, within a graph of several; the least of a few runs.
  double seconds(const std::function<void(Exec&)>& work, int64_t bytes) {
    const int64_t calls = std::clamp<int64_t>((int64_t{2} << 30) / bytes, 8, 200);
    const auto graph = stream_->capture([&] {
      for (int64_t i = 0; i < calls; ++i) work(exec_);
    });
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

  std::unique_ptr<Device> device_ = make_cuda_device();
  Ledger ledger_;
  Memory memory_{*device_, ledger_};
  std::unique_ptr<Stream> stream_ = device_->make_stream(StreamUse::compute);
  Region memory_region_{memory_, Place::device, "bench", kBytes};
  Region workspace_{memory_, Place::device, "bench", kCudaWorkspaceBytes};
  Exec exec_{.device = *device_,
             .stream = *stream_,
             .workspace = {workspace_.data(), static_cast<size_t>(kCudaWorkspaceBytes)}};
  std::vector<uint16_t> block_;
  Arena arena_;
  double copy_rate_ = 1;  // bytes a second
};

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

Case qkv_split_case(Bench& bench, int64_t n, Heads heads) {
  const QkvSplitArgs args = {
      .qkv = bench.bf16({n, heads.row()}),
      .q_norm = bench.bf16({heads.dim}),
      .k_norm = bench.bf16({heads.dim}),
      .positions = bench.integers(n, [](int64_t i) { return i % kPositions; }),
      .rope = bench.f32({kPositions, heads.dim}),
      .slots = bench.integers(n, [n](int64_t i) { return n - 1 - i; }),
      .q = bench.bf16({n, heads.query, heads.dim}),
      .k_pool = bench.bf16({n, heads.key, heads.dim}),
      .v_pool = bench.bf16({n, heads.key, heads.dim}),
      .eps = kEps};
  return {fmt::format("qkv_split {} x {}+2*{} heads", n, heads.query, heads.key),
          2 * args.qkv.bytes(),
          [args](Exec& exec) { qkv_split(exec, args); },
          {args.q, args.k_pool, args.v_pool}};
}

Case qkv_split_backward_case(Bench& bench, int64_t n, Heads heads) {
  const QkvSplitBackwardArgs args = {
      .dq = bench.bf16({n, heads.query, heads.dim}),
      .dk = bench.bf16({n, heads.key, heads.dim}),
      .dv = bench.bf16({n, heads.key, heads.dim}),
      .qkv = bench.bf16({n, heads.row()}),
      .q_norm = bench.bf16({heads.dim}),
      .k_norm = bench.bf16({heads.dim}),
      .positions = bench.integers(n, [](int64_t i) { return i % kPositions; }),
      .rope = bench.f32({kPositions, heads.dim}),
      .dqkv = bench.bf16({n, heads.row()}),
      .dq_norm = bench.zeros({heads.dim}),
      .dk_norm = bench.zeros({heads.dim}),
      .eps = kEps};
  return {fmt::format("qkv_split_backward {} x {}+2*{} heads", n, heads.query, heads.key),
          bytes_of({args.dq, args.dk, args.dv, args.dq, args.dk, args.dqkv}),
          [args](Exec& exec) { qkv_split_backward(exec, args); },
          {args.dqkv, args.dq_norm, args.dk_norm}};
}

Case rms_norm_case(Bench& bench, int64_t n, int64_t columns, bool with_delta) {
  const RmsNormArgs args = {.x = bench.bf16({n, columns}),
                            .delta = with_delta ? bench.bf16({n, columns}) : Tensor{},
                            .w = bench.bf16({columns}),
                            .y = bench.bf16({n, columns}),
                            .rstd = bench.f32({n}),
                            .eps = kEps};
  return {fmt::format("rms_norm {} x {}{}", n, columns, with_delta ? " with delta" : ""),
          (with_delta ? 4 : 2) * args.x.bytes(),
          [args](Exec& exec) { rms_norm(exec, args); },
          {args.x, args.y, args.rstd}};
}

Case rms_norm_backward_case(Bench& bench, int64_t n, int64_t columns) {
  const RmsNormBackwardArgs args = {.dy = bench.bf16({n, columns}),
                                    .x = bench.bf16({n, columns}),
                                    .w = bench.bf16({columns}),
                                    .rstd = bench.ones(n),
                                    .dx = bench.bf16({n, columns}),
                                    .dw = bench.zeros({columns})};
  return {fmt::format("rms_norm_backward {} x {}", n, columns),
          4 * args.x.bytes(),
          [args](Exec& exec) { rms_norm_backward(exec, args); },
          {args.dx, args.dw}};
}

Case swiglu_case(Bench& bench, int64_t n, int64_t columns) {
  const SwigluArgs args = {.gate_up = bench.bf16({n, 2 * columns}), .y = bench.bf16({n, columns})};
  return {fmt::format("swiglu {} x {}", n, columns),
          3 * args.y.bytes(),
          [args](Exec& exec) { swiglu(exec, args); },
          {args.y}};
}

Case swiglu_backward_case(Bench& bench, int64_t n, int64_t columns) {
  const SwigluBackwardArgs args = {.dy = bench.bf16({n, columns}),
                                   .gate_up = bench.bf16({n, 2 * columns}),
                                   .dgate_up = bench.bf16({n, 2 * columns}),
                                   .y = bench.bf16({n, columns})};
  return {fmt::format("swiglu_backward {} x {}", n, columns),
          6 * args.dy.bytes(),
          [args](Exec& exec) { swiglu_backward(exec, args); },
          {args.dgate_up, args.y}};
}

Case add_case(Bench& bench, int64_t n) {
  const Tensor x = bench.bf16({n});
  const AddArgs args = {.x = x, .y = bench.bf16({n}), .sum = x};
  return {fmt::format("add {}", n),
          3 * args.x.bytes(),
          [args](Exec& exec) { add(exec, args); },
          {args.x}};
}

Case sum_of_squares_case(Bench& bench, int64_t n) {
  const SumOfSquaresArgs args = {.x = bench.bf16({n}), .out = bench.f32({1})};
  return {fmt::format("sum_of_squares {}", n),
          args.x.bytes(),
          [args](Exec& exec) { sum_of_squares(exec, args); },
          {args.out}};
}

Case adamw_case(Bench& bench, int64_t n) {
  const AdamWArgs args = {.param = bench.bf16({n}),
                          .low = bench.tensor(DType::u16, {n}),
                          .m = bench.f32({n}),
                          .v = bench.zeros({n}),
                          .grad = bench.bf16({n}),
                          .grad_scale = 0.5F,
                          .lr = 1e-3F,
                          .weight_decay = 0.1F};
  return {fmt::format("adamw {}", n),
          2 * bytes_of({args.param, args.low, args.m, args.v}) + args.grad.bytes(),
          [args](Exec& exec) { adamw(exec, args); },
          {args.param, args.low, args.m, args.v}};
}

Case log_prob_case(Bench& bench, int64_t n, int64_t vocab) {
  const LogProbArgs args = {
      .logits = bench.f32({n, vocab}),
      .targets = bench.integers(n, [vocab](int64_t i) { return i * 7919 % vocab; }),
      .inverse_temperature = bench.ones(n),
      .log_prob = bench.f32({n}),
      .lse = bench.f32({n}),
      .entropy = bench.f32({n})};
  return {fmt::format("log_prob {} x {}", n, vocab),
          args.logits.bytes(),
          [args](Exec& exec) { log_prob(exec, args); },
          {args.log_prob, args.lse, args.entropy}};
}

Case log_prob_backward_case(Bench& bench, int64_t n, int64_t vocab) {
  const LogProbBackwardArgs args = {
      .logits = bench.f32({n, vocab}),
      .targets = bench.integers(n, [vocab](int64_t i) { return i * 7919 % vocab; }),
      .inverse_temperature = bench.ones(n),
      .lse = bench.ones(n),
      .entropy = bench.ones(n),
      .d_log_prob = bench.ones(n),
      .d_entropy = bench.ones(n),
      .dlogits = bench.bf16({n, vocab})};
  return {fmt::format("log_prob_backward {} x {}", n, vocab),
          args.logits.bytes() + args.dlogits.bytes(),
          [args](Exec& exec) { log_prob_backward(exec, args); },
          {args.dlogits}};
}

Case sample_case(Bench& bench, int64_t n, int64_t vocab, const SampleRow& row, const char* how) {
  const SampleArgs args = {.logits = bench.f32({n, vocab}),
                           .rows = bench.sample_rows(n, row),
                           .tokens = bench.tensor(DType::i32, {n})};
  return {fmt::format("sample {} x {} {}", n, vocab, how),
          args.logits.bytes(),
          [args](Exec& exec) { sample(exec, args); },
          {args.tokens}};
}

int run(int argc, char** argv) {
  CLI::App app("Ops around a GPU's matrix products");
  std::string only;
  app.add_option("--only", only, "cases of the ops whose names begin so");
  CLI11_PARSE(app, argc, argv);
  Bench bench;
  bench.measure_copies();
  const auto line = [&](const char* op, const auto& make) {
    if (!std::string(op).starts_with(only)) return;
    bench.fill();
    bench.line(make());
  };
  constexpr Heads kSmall = {16, 8, 128}, kLarge = {32, 8, 128};  // Qwen3's 0.6B and 8B
  constexpr int64_t kVocab = 151936;
  const std::pair<int64_t, Heads> batches[] = {{16384, kSmall}, {8192, kLarge}};
  for (const auto& [n, heads] : batches) {
    line("qkv_split", [&] { return qkv_split_case(bench, n, heads); });
    line("qkv_split_backward", [&] { return qkv_split_backward_case(bench, n, heads); });
  }
  for (const auto& [n, columns] : {std::pair<int64_t, int64_t>{16384, 1024}, {8192, 4096}}) {
    line("rms_norm", [&] { return rms_norm_case(bench, n, columns, false); });
    line("rms_norm", [&] { return rms_norm_case(bench, n, columns, true); });
    line("rms_norm_backward", [&] { return rms_norm_backward_case(bench, n, columns); });
  }
  for (const auto& [n, columns] : {std::pair<int64_t, int64_t>{16384, 3072}, {8192, 12288}}) {
    line("swiglu", [&] { return swiglu_case(bench, n, columns); });
    line("swiglu_backward", [&] { return swiglu_backward_case(bench, n, columns); });
  }
  line("add", [&] { return add_case(bench, 8192 * 4096); });
  line("adamw", [&] { return adamw_case(bench, 15728640); });
  line("sum_of_squares", [&] { return sum_of_squares_case(bench, 15728640); });
  line("log_prob", [&] { return log_prob_case(bench, 1024, kVocab); });
  line("log_prob_backward", [&] { return log_prob_backward_case(bench, 1024, kVocab); });
  for (const int64_t n : {8, 64, 256}) {  // decode
    line("qkv_split", [&] { return qkv_split_case(bench, n, kLarge); });
    line("rms_norm", [&] { return rms_norm_case(bench, n, 1024, true); });
    line("rms_norm", [&] { return rms_norm_case(bench, n, 4096, true); });
    line("swiglu", [&] { return swiglu_case(bench, n, 12288); });
    line("add", [&] { return add_case(bench, n * 4096); });
    line("log_prob", [&] { return log_prob_case(bench, n, kVocab); });
    line("sample", [&] { return sample_case(bench, n, kVocab, {}, "unfiltered"); });
    line("sample", [&] { return sample_case(bench, n, kVocab, {.top_p = 0.95F}, "top-p 0.95"); });
  }
  return 0;
}

}  // namespace
}  // namespace miles::bench

int main(int argc, char** argv) {
  return miles::bench::run_main([&] { return miles::bench::run(argc, argv); });
}
