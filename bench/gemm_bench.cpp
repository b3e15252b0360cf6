// Speed of the CPU's matrix products at the shapes of small models. Counters: operations per
// second, and the bytes of w per second, which is what a decode step of few rows is bound by.
//   gemm_bench --benchmark_filter='linear/bf16/.*'      OMP_NUM_THREADS sets the threads,
//   MILES_CPU_BF16=converted the path, MILES_ISA the instruction set.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "ops/gemm.h"

namespace miles {
namespace {

enum class Op { linear, backward_input, backward_weight };

struct Setup {
  Op op;
  DType dtype;
  int64_t m, n, k;
};

/// Memory filled with a number that is normal in either type.
class Buffer {
 public:
  Buffer(DType dtype, int64_t rows, int64_t columns)
      : words_(static_cast<size_t>(rows * columns * size_of(dtype) + 3) / 4, 0x3F803F80U),
        tensor_(words_.data(), dtype, {rows, columns}) {}
  const Tensor& tensor() const { return tensor_; }

 private:
  std::vector<uint32_t> words_;
  Tensor tensor_;
};

struct alignas(64) Workspace {
  std::byte bytes[kWorkspaceBytes];
};

void run(benchmark::State& state, const Setup& s) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream(StreamUse::compute);
  const auto workspace = std::make_unique<Workspace>();
  Exec exec{*device, *stream, workspace->bytes};
  const Buffer x(s.dtype, s.m, s.k), y(s.dtype, s.m, s.n), w(s.dtype, s.n, s.k);
  const Buffer dw(DType::f32, s.op == Op::backward_weight ? s.n : 1, s.k);
  for (auto _ : state) {
    switch (s.op) {
      case Op::linear:
        linear(exec, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()});
        break;
      case Op::backward_input:
        linear_backward_input(exec, {.dy = y.tensor(), .w = w.tensor(), .dx = x.tensor()});
        break;
      case Op::backward_weight:
        linear_backward_weight(exec, {.dy = y.tensor(), .x = x.tensor(), .dw = dw.tensor()});
        break;
    }
  }
  using benchmark::Counter;
  const auto times = static_cast<double>(state.iterations());
  const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n * s.k) * times;
  state.counters["FLOP/s"] = Counter(flops, Counter::kIsRate);
  state.counters["w B/s"] =
      Counter(static_cast<double>(w.tensor().bytes()) * times, Counter::kIsRate, Counter::kIs1024);
}

void register_all() {
  const std::pair<const char*, Op> ops[] = {{"linear", Op::linear},
                                            {"backward_input", Op::backward_input},
                                            {"backward_weight", Op::backward_weight}};
  const std::pair<int64_t, int64_t> shapes[] = {{64, 172},    {1024, 1024}, {1024, 3072},
                                                {3072, 1024}, {4096, 1024}, {151936, 1024}};
  for (const auto& [name, op] : ops)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [n, k] : shapes)
        for (const int64_t m : {1, 8, 64, 512}) {
          if (n > 100000 && m > 64) continue;  // logits are computed in chunks of rows
          if (op != Op::linear && m < 64) continue;
          const Setup setup{.op = op, .dtype = dtype, .m = m, .n = n, .k = k};
          const auto title =
              fmt::format("{}/{}/{}x{}/{}", name, dtype == DType::f32 ? "f32" : "bf16", n, k, m);
          benchmark::RegisterBenchmark(title.c_str(), run, setup)->UseRealTime();
        }
}

}  // namespace
}  // namespace miles

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  miles::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
