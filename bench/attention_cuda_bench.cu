// CUDA's attention on its own: is it right, are a row's bits its own, how fast is it. Needs no test
// framework and no CPU backend. Build, in the repository's root:
//   nvcc -std=c++20 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -I. -Isrc
//     -DSPDLOG_FMT_EXTERNAL -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY bench/attention_cuda_bench.cu
//     src/ops/cuda/attention*.cu src/device/cuda/cuda_stream.cpp src/device/device.cpp
//     src/base/error.cpp src/tensor/*.cpp -Xcompiler=-static-libstdc++ -lcudart_static -o
//     build/attention_cuda_bench
//   attention_cuda_bench [check] [bits] [time]     all three without arguments
#include "bench/attention_cuda_bits.cuh"
#include "bench/attention_cuda_definition.cuh"
#include "ops/cuda/attention_tile.cuh"

namespace miles::cuda {
namespace {

// ---- check

template <class T>
void check_against_definition(const Problem& e, double tolerance) {
  Training<T> t(e);
  t.forward();
  t.backward();
  std::vector<int32_t> sequence_begin, sequence_end;
  const auto begins = e.begins();
  for (size_t b = 0; b < e.lengths.size(); ++b)
    for (int i = 0; i < e.lengths[b]; ++i) {
      sequence_begin.push_back(begins[b]);
      sequence_end.push_back(begins[b + 1]);
    }
  const Buffer<int32_t> first(sequence_begin), end(sequence_end);
  const auto longest = *std::max_element(e.lengths.begin(), e.lengths.end());
  const size_t rows = t.lse.size();
  const Buffer<double> out(t.q.size()), lse(rows), p(rows * size_t(longest)),
      ds(rows * size_t(longest)), dq(t.q.size()), dk(t.k.size()), dv(t.k.size());
  const Definition<T> f = {t.q.get(), t.k.get(),  t.v.get(), t.dout.get(), first.get(),
                           end.get(), e.tokens(), e.heads,   e.kv_heads,   e.dim,
                           longest,   e.scale(),  out.get(), lse.get(),    p.get(),
                           ds.get(),  dq.get(),   dk.get(),  dv.get()};
  define_rows<<<blocks_for(int64_t(rows), 64), 64>>>(f);
  define_dq<<<blocks_for(int64_t(dq.size()), 128), 128>>>(f);
  define_dkv<<<blocks_for(int64_t(dk.size()), 128), 128>>>(f);
  check(cudaDeviceSynchronize(), "the definition");
  const Difference d[] = {compare(t.out, out), compare(t.lse, lse), compare(t.dq, dq),
                          compare(t.dk, dk), compare(t.dv, dv)};
  bool good = d[1].largest < 1e-4;
  for (const Difference& x : d) good = good && x.relative < tolerance;
  const auto dq_bits = t.dq.host(), dk_bits = t.dk.host(), dv_bits = t.dv.host();
  t.backward(rows * 8 / size_t(e.kv_heads));  // one key head at a time
  const bool again = same_bits(dq_bits, t.dq.host()) && same_bits(dk_bits, t.dk.host()) &&
                     same_bits(dv_bits, t.dv.host());
  // As a card with little shared memory cuts it.
  const auto out_bits = t.out.host();
  const int limit = shared_limit().exchange(kLeastShared);
  t.forward();
  t.backward();
  shared_limit() = limit;
  const bool small = same_bits(out_bits, t.out.host()) && same_bits(dq_bits, t.dq.host()) &&
                     same_bits(dk_bits, t.dk.host()) && same_bits(dv_bits, t.dv.host());
  std::printf("check %-4s D %3d heads %2d/%d  relative (largest)", sizeof(T) == 2 ? "bf16" : "f32",
              int(e.dim), int(e.heads), int(e.kv_heads));
  const char* names[] = {"out", "lse", "dq", "dk", "dv"};
  for (int i = 0; i < 5; ++i)
    std::printf("  %s %.1e (%.1e)", names[i], d[i].relative, d[i].largest);
  std::printf("  %s, the same again: %s, with 99 KB a block: %s\n", verdict(good), verdict(again),
              verdict(small));
}

void check_all() {
  const std::vector<int32_t> ragged = {1, 63, 64, 65, 1000, 2, 130};
  for (const int64_t dim : {64, 128})
    for (const int64_t group : {1, 2, 4, 8})
      check_against_definition<bf16>({2 * group, 2, dim, ragged}, 1e-2);
  for (const int64_t dim : {16, 32, 80, 96, 192, 256})
    check_against_definition<bf16>({6, 2, dim, {1, 65, 200}}, 1e-2);
  check_against_definition<bf16>({7, 1, 64, {65, 2, 300}}, 1e-2);
  check_against_definition<bf16>({40, 2, 128, {65, 2, 300}}, 1e-2);
  for (const int64_t dim : {5, 264})
    check_against_definition<bf16>({6, 2, dim, {1, 65, 200}}, 1e-2);
  for (const int64_t dim : {5, 64, 128, 512})
    check_against_definition<float>({6, 2, dim, {1, 65, 200}}, 1e-4);
}

// ---- bits

void check_bits(const Problem& e) {
  Bits bits(e);
  std::mt19937_64 random(5);
  std::printf("bits  bf16 D %3d heads %2d/%d  rows that differ:", int(e.dim), int(e.heads),
              int(e.kv_heads));
  const auto report = [](const char* name, int64_t rows) {
    std::printf("  %s %ld %s", name, long(rows), verdict(rows == 0));
    std::fflush(stdout);
  };
  int64_t rows = 0;
  for (const int page_size : {1, 7, 16, 64, 100})
    rows += bits.differing(bits.paged(page_size, uint64_t(page_size)), bits.wholes());
  report("paged", rows);
  rows = 0;
  const Pool packed = bits.packed(), paged = bits.paged(16, 99);
  for (const Piece& piece : bits.wholes()) rows += bits.differing(packed, {piece});
  report("alone", rows);
  for (const int chunk : {3, 50, 64, 200}) {  // with batch mates that change
    rows = 0;
    for (int first = 0; first < 1000; first += chunk) {
      std::vector<Piece> pieces;
      for (const Piece& p : bits.wholes())
        if (first < p.count)
          pieces.push_back({p.sequence, first, std::min(chunk, p.count - first)});
      std::shuffle(pieces.begin(), pieces.end(), random);
      rows += bits.differing(paged, pieces);
    }
    report(("chunks of " + std::to_string(chunk)).c_str(), rows);
  }
  rows = 0;
  for (int token = 0; token < 1000; ++token) {
    std::vector<Piece> pieces;
    for (const Piece& p : bits.wholes())
      if (token < p.count) pieces.push_back({p.sequence, token, 1});
    std::shuffle(pieces.begin(), pieces.end(), random);
    const int limit = shared_limit();
    if (token % 3 == 0) shared_limit() = kLeastShared;  // as on a card that has no more
    rows += bits.differing(token % 2 ? paged : packed, pieces);
    shared_limit() = limit;
  }
  report("decode", rows);
  report("NaN later", bits.differing(bits.spoiled(80, NAN), bits.wholes(), 80));
  report("infinity later", bits.differing(bits.spoiled(90, INFINITY), bits.wholes(), 90));
  report("huge later", bits.differing(bits.spoiled(70, 1e30F), bits.wholes(), 70));
  std::printf("\n");
}

// ---- time

constexpr int64_t kScratchDim = 128;  // of heads: the only ones for which scratch is used

/// Seconds of one run.
double seconds(const std::function<void()>& run) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  const cudaStream_t stream = runner().stream.handle();
  const auto timed = [&](int times) {
    check(cudaEventRecord(begin, stream), "recording");
    for (int i = 0; i < times; ++i) run();
    check(cudaEventRecord(end, stream), "recording");
    check(cudaEventSynchronize(end), "kernels");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    return ms / 1000.0 / times;
  };
  timed(2);
  const double one = timed(2);
  const double result = timed(std::clamp(static_cast<int>(0.3 / one), 3, 500));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return result;
}

constexpr int kReadThreads = 512;

/// Each block sums what it reads, so that nothing else than reading takes time.
__global__ void __launch_bounds__(kReadThreads)
    read_all(const uint4* x, int64_t count, uint32_t* sums) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * kReadThreads;
#pragma unroll 8
  for (int64_t i = int64_t{blockIdx.x} * kReadThreads + threadIdx.x; i < count; i += step) {
    const uint4 words = x[i];
    sum += words.x ^ words.y ^ words.z ^ words.w;
  }
  atomicAdd(sums + blockIdx.x, sum);
}

/// The rate of reading memory in order: what decode could reach at best.
void time_reads() {
  const int64_t bytes = int64_t{4} << 30, blocks = 132 * 4;
  const Buffer<std::byte> x(static_cast<size_t>(bytes));
  const Buffer<uint32_t> sums(static_cast<size_t>(blocks));
  check(cudaMemset(x.get(), 1, x.size()), "filling");
  const double time = seconds([&] {
    read_all<<<static_cast<unsigned>(blocks), kReadThreads, 0, runner().stream.handle()>>>(
        reinterpret_cast<const uint4*>(x.get()), bytes / 16, sums.get());
  });
  std::printf("| reading  | 4 GiB in order |          | %9.1f us | %7.0f GB/s    |          |\n",
              time * 1e6, static_cast<double>(bytes) / time / 1e9);
}

/// Where the keys come from: each sequence's own pages, or all from the first one's, which the L2
/// holds: then memory is not what takes the time.
enum class Keys { own, of_the_first };

/// What decodes: sequences that share their first `prompt` keys in groups.
struct DecodeProblem {
  int64_t sequences, heads, kv_heads, dim;
  int context;         // keys of each sequence
  int group = 1;       // sequences that share
  int prompt = 0;      // keys, a multiple of a page's
  bool hinted = true;  // attention is told
  Keys keys = Keys::own;
};

void time_decode(const DecodeProblem& e) {
  constexpr int kPage = 16;
  const int64_t per_sequence = (e.context + kPage - 1) / kPage,
                slots = e.sequences * per_sequence * kPage;
  const auto q = normals<bf16>(e.sequences * e.heads * e.dim, 1);
  const auto k = normals<bf16>(slots * e.kv_heads * e.dim, 2),
             v = normals<bf16>(slots * e.kv_heads * e.dim, 3);
  std::vector<int32_t> pages(size_t(e.sequences * per_sequence)), begins(size_t(e.sequences) + 1),
      runs;
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  if (e.keys == Keys::of_the_first)
    for (size_t i = size_t(per_sequence); i < pages.size(); ++i)
      pages[i] = pages[i - size_t(per_sequence)];
  for (int64_t b = 0; b < e.sequences; ++b)
    std::copy_n(pages.begin() + b / e.group * e.group * per_sequence, e.prompt / kPage,
                pages.begin() + b * per_sequence);
  for (int b = 0; e.group > 1 && e.hinted && b < e.sequences; b += e.group)
    runs.insert(runs.end(), {b, std::min(e.group, int(e.sequences) - b)});
  std::iota(begins.begin(), begins.end(), 0);
  const Buffer<int32_t> d_pages(pages), d_begins(begins), d_runs(runs),
      d_context(std::vector<int32_t>(size_t(e.sequences), e.context)),
      d_shared(std::vector<int32_t>(size_t(e.sequences), e.prompt));
  const Buffer<bf16> out(q.size());
  const auto run = [&] {
    Exec exec = runner().exec();
    cuda::attention(
        exec, {.q = view(q, {e.sequences, e.heads, e.dim}),
               .k_pool = view(k, {slots, e.kv_heads, e.dim}),
               .v_pool = view(v, {slots, e.kv_heads, e.dim}),
               .query_begin = view(d_begins, {e.sequences + 1}),
               .context = view(d_context, {e.sequences}),
               .page_table = view(d_pages, {e.sequences, per_sequence}),
               .kv_begin = {},
               .page_size = kPage,
               .shared_runs = runs.empty() ? Tensor() : view(d_runs, {int64_t(runs.size()) / 2, 2}),
               .shared_keys = view(d_shared, {e.sequences}),
               .scale = 1 / std::sqrt(static_cast<float>(e.dim)),
               .out = view(out, {e.sequences, e.heads, e.dim}),
               .lse = {}});
  };
  // As the engine runs it: captured once, launched as a graph.
  const cudaStream_t stream = runner().stream.handle();
  run();
  const auto eager = out.host();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  run();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  check(cudaMemset(out.get(), 0, out.size() * 2), "clearing");
  check(cudaDeviceSynchronize(), "clearing");
  const double time = seconds([&] { check(cudaGraphLaunch(executable, stream), "graph"); });
  const bool same = same_bits(eager, out.host());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  const double bytes =
      4.0 * static_cast<double>(e.sequences * e.context * e.kv_heads * e.dim);  // as if unshared
  std::printf("| %s | %4d x %5d | %2d/%d %3d | %9.1f us | %7.0f GB/s    | graph %s",
              e.keys == Keys::own ? "decode  " : "of L2   ", int(e.sequences), e.context,
              int(e.heads), int(e.kv_heads), int(e.dim), time * 1e6, bytes / time / 1e9,
              verdict(same));
  if (e.group > 1)
    std::printf(", groups of %d share %d%s", e.group, e.prompt, e.hinted ? "" : ", not hinted");
  std::printf(" |\n");
}

void time_training(int64_t sequences, int length, int64_t heads, int64_t kv_heads, int64_t dim) {
  const Problem e = {heads, kv_heads, dim, std::vector<int32_t>(size_t(sequences), length)};
  Training<bf16> t(e);
  const double forward = seconds([&] { t.forward(); });
  const double backward = seconds([&] { t.backward(); });
  const auto row = [&](const char* name, double time, double passes) {
    std::printf("| %s | %4d x %5d | %2d/%d %3d | %9.1f us | %7.1f TFLOP/s |          |\n", name,
                int(sequences), length, int(heads), int(kv_heads), int(dim), time * 1e6,
                e.flops() * passes / time / 1e12);
  };
  row("forward ", forward, 1);
  row("backward", backward, 2.5);
  if (dim != kScratchDim) return;
  t.scratch.emplace(size_t(3) << 30);
  row("…scratch", seconds([&] { t.backward(); }), 2.5);
}

void time_all() {
  std::printf("| what     | seqs x tokens | heads   D | time         | speed           |\n");
  time_reads();
  time_decode({256, 32, 8, 128, 1536});
  time_decode({.sequences = 256,
               .heads = 32,
               .kv_heads = 8,
               .dim = 128,
               .context = 1536,
               .keys = Keys::of_the_first});
  time_decode({2048, 4, 1, 128, 1536});  // as many bytes, a page's in one run
  time_decode({256, 16, 8, 128, 1536});
  time_decode({256, 32, 8, 64, 1536});
  time_decode({32, 32, 8, 128, 1536});
  time_decode({8, 32, 8, 128, 1536});
  for (const auto& [sequences, heads, group] :
       {std::array{256, 32, 8}, {256, 32, 4}, {256, 16, 8}, {256, 64, 8}, {64, 32, 8}, {40, 32, 8}})
    for (const bool hinted : {false, true})
      time_decode({sequences, heads, 8, 128, 1536, group, 1024, hinted});
  time_training(8, 4096, 32, 8, 128);
  time_training(8, 4096, 16, 8, 128);
  time_training(8, 4096, 32, 8, 64);
  time_training(64, 512, 32, 8, 128);
  time_training(1, 16384, 32, 8, 128);
}

int main_of(int argc, char** argv) {
  const auto wants = [&](const char* name) {
    return argc == 1 ||
           std::any_of(argv + 1, argv + argc, [&](const char* a) { return !std::strcmp(a, name); });
  };
  if (wants("check")) check_all();
  if (wants("bits"))
    for (const auto& [heads, kv_heads, dim] : {std::array<int64_t, 3>{8, 2, 128},
                                               {2, 2, 128},
                                               {8, 1, 64},
                                               {4, 2, 64},
                                               {14, 2, 64},
                                               {40, 2, 128},
                                               {4, 2, 256},
                                               {6, 2, 80},
                                               {6, 2, 5}})
      check_bits({heads, kv_heads, dim, {1, 63, 64, 65, 1000, 130}});
  if (wants("time")) time_all();
  std::printf("%d failures\n", failures);
  return failures != 0;
}

}  // namespace
}  // namespace miles::cuda

int main(int argc, char** argv) {
  try {
    return miles::cuda::main_of(argc, argv);
  } catch (const miles::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}
