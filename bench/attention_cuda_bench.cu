// CUDA's attention on its own: is it right, are a row's bits its own, how fast is it. Needs no test
// framework and no CPU backend. Build, in the repository's root:
//   nvcc -std=c++20 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Isrc -DSPDLOG_FMT_EXTERNAL
//     -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY bench/attention_cuda_bench.cu src/ops/cuda/attention*.cu
//     src/device/cuda/cuda_stream.cpp src/device/device.cpp src/base/error.cpp src/tensor/*.cpp -Xcompiler=-static-libstdc++
//     -lcudart_static -o build/attention_cuda_bench
//   attention_cuda_bench [check] [bits] [time]     all three without arguments
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/numeric.cuh"

namespace miles::cuda {
namespace {

int failures = 0;
const char* verdict(bool good) {
  failures += !good;
  return good ? "ok" : "FAIL";
}

class NoDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "none"; }
  int64_t capacity_bytes() const override { return 0; }
  AddressSpace& memory() override { std::abort(); }
  AddressSpace& host_memory() override { std::abort(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override { std::abort(); }
};

template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<size_t>(count * sizeof(T), 16)), "cudaMalloc");
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  Buffer(Buffer&& other) : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  ~Buffer() { cudaFree(data_); }
  std::vector<T> host() const {
    check(cudaDeviceSynchronize(), "kernels");
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }
  T* get() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

template <class T>
Tensor view(const Buffer<T>& buffer, Shape shape) {
  constexpr DType type = std::is_same_v<T, bf16>    ? DType::bf16
                         : std::is_same_v<T, float> ? DType::f32
                                                    : DType::i32;
  return {buffer.get(), type, shape};
}

struct Runner {
  NoDevice device;
  CudaStream stream;
  Buffer<std::byte> workspace{size_t(kCudaWorkspaceBytes)};
  Exec exec() { return {device, stream, {workspace.get(), workspace.size()}}; }
};
Runner& runner() {
  static Runner r;
  return r;
}

/// Numbers that look normal: sums of four uniform ones.
template <class T>
__global__ void fill(T* x, int64_t count, uint64_t seed, float scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xD1B54A32D192ED03ULL;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
  h ^= h >> 31;
  float sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>((h >> (16 * part)) & 0xFFFF) / 65536;
  x[i] = from_f32<T>((sum - 2) * 1.732F * scale);
}
template <class T>
Buffer<T> normals(int64_t count, uint64_t seed, float scale = 1) {
  Buffer<T> x(static_cast<size_t>(count));
  fill<<<blocks_for(count, 256), 256>>>(x.get(), count, seed, scale);
  check(cudaDeviceSynchronize(), "fill");
  return x;
}

struct Problem {
  int64_t heads, kv_heads, dim;
  std::vector<int32_t> lengths;
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
  std::vector<int32_t> begins() const {
    std::vector<int32_t> begins = {0};
    for (const int32_t length : lengths) begins.push_back(begins.back() + length);
    return begins;
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  /// Of causal attention, forward.
  double flops() const {
    double pairs = 0;
    for (const double n : lengths) pairs += n * (n + 1) / 2;
    return 4.0 * static_cast<double>(dim * heads) * pairs;
  }
};

// ---- The definition, in f64. p and ds are [N, Hq, longest].

template <class T>
struct Definition {
  const T *q, *k, *v, *dout;
  const int32_t* sequence_begin;  // of each token
  const int32_t* sequence_end;
  int64_t tokens, heads, kv_heads, dim, longest;
  double scale;
  double *out, *lse, *p, *ds, *dq, *dk, *dv;
};
__device__ double f64(float x) { return x; }
__device__ double f64(bf16 x) { return __bfloat162float(x); }

/// A thread for each row.
template <class T>
__global__ void define_rows(Definition<T> f) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= f.tokens * f.heads) return;
  const int64_t n = row / f.heads, kv = row % f.heads / (f.heads / f.kv_heads);
  const int64_t begin = f.sequence_begin[n];
  double *p = f.p + row * f.longest, *ds = f.ds + row * f.longest;
  double top = -1e300, sum = 0, delta = 0;
  for (int64_t j = begin; j <= n; ++j) {
    double s = 0, dp = 0;
    for (int64_t d = 0; d < f.dim; ++d) {
      s += f64(f.q[row * f.dim + d]) * f64(f.k[(j * f.kv_heads + kv) * f.dim + d]);
      dp += f64(f.dout[row * f.dim + d]) * f64(f.v[(j * f.kv_heads + kv) * f.dim + d]);
    }
    p[j - begin] = s * f.scale;
    ds[j - begin] = dp;
    top = fmax(top, s * f.scale);
  }
  for (int64_t j = begin; j <= n; ++j) sum += exp(p[j - begin] - top);
  f.lse[row] = top + log(sum);
  for (int64_t j = begin; j <= n; ++j) p[j - begin] = exp(p[j - begin] - f.lse[row]);
  for (int64_t d = 0; d < f.dim; ++d) {
    double out = 0;
    for (int64_t j = begin; j <= n; ++j)
      out += p[j - begin] * f64(f.v[(j * f.kv_heads + kv) * f.dim + d]);
    f.out[row * f.dim + d] = out;
    delta += out * f64(f.dout[row * f.dim + d]);
  }
  for (int64_t j = begin; j <= n; ++j) ds[j - begin] = p[j - begin] * (ds[j - begin] - delta);
}

/// A thread for each element of dq.
template <class T>
__global__ void define_dq(Definition<T> f) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= f.tokens * f.heads * f.dim) return;
  const int64_t row = i / f.dim, n = row / f.heads, kv = row % f.heads / (f.heads / f.kv_heads);
  double sum = 0;
  for (int64_t j = f.sequence_begin[n]; j <= n; ++j)
    sum += f.ds[row * f.longest + j - f.sequence_begin[n]] *
           f64(f.k[(j * f.kv_heads + kv) * f.dim + i % f.dim]);
  f.dq[i] = sum * f.scale;
}

/// A thread for each element of dk and dv.
template <class T>
__global__ void define_dkv(Definition<T> f) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= f.tokens * f.kv_heads * f.dim) return;
  const int64_t j = i / f.dim / f.kv_heads, kv = i / f.dim % f.kv_heads, d = i % f.dim;
  const int64_t group = f.heads / f.kv_heads;
  double dk = 0, dv = 0;
  for (int64_t n = j; n < f.sequence_end[j]; ++n)
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const int64_t row = n * f.heads + h, at = row * f.longest + j - f.sequence_begin[j];
      dk += f.ds[at] * f64(f.q[row * f.dim + d]);
      dv += f.p[at] * f64(f.dout[row * f.dim + d]);
    }
  f.dk[i] = dk * f.scale;
  f.dv[i] = dv;
}

struct Difference {
  double relative = 0, largest = 0;  // root mean square over that of `want`; absolute
};
template <class T>
Difference compare(const Buffer<T>& got, const Buffer<double>& want) {
  const auto a = got.host();
  const auto b = want.host();
  double square = 0, of_want = 0;
  Difference d;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(static_cast<float>(a[i])) - b[i]);
    if (!(difference <= d.largest)) d.largest = difference;  // keeps NaN
    square += difference * difference;
    of_want += b[i] * b[i];
  }
  d.relative = std::sqrt(square / std::max(of_want, 1e-300));
  return d;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A problem's operands on the device, and its gradients.
template <class T>
struct Training {
  Problem e;
  Buffer<T> q, k, v, dout, out, dq, dk, dv;
  Buffer<float> lse;
  Buffer<int32_t> begins, context;

  explicit Training(const Problem& e)
      : e(e),
        q(normals<T>(e.tokens() * e.heads * e.dim, 1, 1.5F)),
        k(normals<T>(e.tokens() * e.kv_heads * e.dim, 2, 1.5F)),
        v(normals<T>(e.tokens() * e.kv_heads * e.dim, 3)),
        dout(normals<T>(e.tokens() * e.heads * e.dim, 4)),
        out(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()),
        lse(size_t(e.tokens() * e.heads)),
        begins(e.begins()),
        context(e.lengths) {}
  Shape queries() const { return {e.tokens(), e.heads, e.dim}; }
  Shape keys() const { return {e.tokens(), e.kv_heads, e.dim}; }
  void forward() {
    Exec exec = runner().exec();
    cuda::attention(exec, {.q = view(q, queries()),
                     .k_pool = view(k, keys()),
                     .v_pool = view(v, keys()),
                     .query_begin = view(begins, {e.sequences() + 1}),
                     .context = view(context, {e.sequences()}),
                     .page_table = {},
                     .kv_begin = view(begins, {e.sequences()}),
                     .page_size = 0,
                     .scale = e.scale(),
                     .out = view(out, queries()),
                     .lse = view(lse, {e.tokens(), e.heads})});
  }
  void backward(size_t workspace = size_t(kCudaWorkspaceBytes)) {
    Exec exec = runner().exec();
    exec.workspace = exec.workspace.first(workspace);
    cuda::attention_backward(exec, {.q = view(q, queries()),
                              .k = view(k, keys()),
                              .v = view(v, keys()),
                              .out = view(out, queries()),
                              .lse = view(lse, {e.tokens(), e.heads}),
                              .dout = view(dout, queries()),
                              .query_begin = view(begins, {e.sequences() + 1}),
                              .scale = e.scale(),
                              .dq = view(dq, queries()),
                              .dk = view(dk, keys()),
                              .dv = view(dv, keys())});
  }
};

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
  const Definition<T> f = {t.q.get(),  t.k.get(),   t.v.get(), t.dout.get(), first.get(), end.get(),
                           e.tokens(), e.heads,     e.kv_heads, e.dim,       longest,     e.scale(),
                           out.get(),  lse.get(),   p.get(),   ds.get(),     dq.get(),    dk.get(),
                           dv.get()};
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
  std::printf("check %-4s D %3d heads %2d/%d  relative (largest)", sizeof(T) == 2 ? "bf16" : "f32",
              int(e.dim), int(e.heads), int(e.kv_heads));
  const char* names[] = {"out", "lse", "dq", "dk", "dv"};
  for (int i = 0; i < 5; ++i) std::printf("  %s %.1e (%.1e)", names[i], d[i].relative, d[i].largest);
  std::printf("  %s, the same again: %s\n", verdict(good), verdict(again));
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
  for (const int64_t dim : {5, 264}) check_against_definition<bf16>({6, 2, dim, {1, 65, 200}}, 1e-2);
  for (const int64_t dim : {5, 64, 128, 512})
    check_against_definition<float>({6, 2, dim, {1, 65, 200}}, 1e-4);
}

// ---- bits

struct Piece {
  int sequence, first, count;  // tokens
};

/// Where keys and values are: packed, or on shuffled pages whose unused slots are NaN.
struct Pool {
  Buffer<bf16> k, v;
  std::vector<std::vector<int32_t>> pages;  // of each sequence; empty: packed
  int page_size = 0;
};

struct Rows {
  std::vector<bf16> out;
  std::vector<float> lse;
};

class Bits {
 public:
  explicit Bits(const Problem& e)
      : e_(e), t_(e), q_(t_.q.host()), k_(t_.k.host()), v_(t_.v.host()), begins_(e.begins()) {
    t_.forward();
    base_ = {t_.out.host(), t_.lse.host()};
  }

  Pool packed() const { return {Buffer<bf16>(k_), Buffer<bf16>(v_), {}, 0}; }
  Pool paged(int page_size, uint64_t seed) const {
    int64_t count = 3;
    for (const int length : e_.lengths) count += (length + page_size - 1) / page_size;
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    const auto row = static_cast<size_t>(e_.kv_heads * e_.dim);
    std::vector<bf16> k(size_t(count * page_size) * row, __float2bfloat16(NAN)), v = k;
    std::vector<std::vector<int32_t>> pages(e_.lengths.size());
    size_t next = 0;
    for (size_t b = 0; b < e_.lengths.size(); ++b)
      for (int key = 0; key < e_.lengths[b]; ++key) {
        if (key % page_size == 0) pages[b].push_back(order[next++]);
        const auto to = size_t(pages[b].back() * page_size + key % page_size) * row;
        const auto from = size_t(begins_[b] + key) * row;
        std::copy_n(k_.begin() + from, row, k.begin() + to);
        std::copy_n(v_.begin() + from, row, v.begin() + to);
      }
    return {Buffer<bf16>(k), Buffer<bf16>(v), pages, page_size};
  }
  /// Packed, with the keys and values of tokens from `first` on put to x.
  Pool spoiled(int first, float x) const {
    auto k = k_, v = v_;
    const auto row = static_cast<size_t>(e_.kv_heads * e_.dim);
    for (size_t b = 0; b < e_.lengths.size(); ++b)
      for (int key = first; key < e_.lengths[b]; ++key) {
        const auto at = size_t(begins_[b] + key) * row;
        for (size_t i = 0; i < row; ++i) k[at + i] = v[at + i] = __float2bfloat16(x);
      }
    return {Buffer<bf16>(k), Buffer<bf16>(v), {}, 0};
  }

  /// How many rows differ from the packed whole, of those of tokens before `end`.
  int64_t differing(const Pool& pool, const std::vector<Piece>& pieces, int end = INT32_MAX) {
    const Rows rows = run(pool, pieces);
    const auto dim = static_cast<size_t>(e_.dim), heads = static_cast<size_t>(e_.heads);
    int64_t count = 0;
    size_t row = 0;
    for (const Piece& p : pieces)
      for (int token = p.first; token < p.first + p.count; ++token)
        for (size_t h = 0; h < heads; ++h, ++row) {
          const size_t at = size_t(begins_[size_t(p.sequence)] + token) * heads + h;
          count += token < end && (std::memcmp(&rows.out[row * dim], &base_.out[at * dim], 2 * dim) ||
                                   std::memcmp(&rows.lse[row], &base_.lse[at], 4));
        }
    return count;
  }
  std::vector<Piece> wholes() const {
    std::vector<Piece> pieces;
    for (size_t b = 0; b < e_.lengths.size(); ++b) pieces.push_back({int(b), 0, e_.lengths[b]});
    return pieces;
  }

 private:
  Rows run(const Pool& pool, const std::vector<Piece>& pieces) {
    const auto row = static_cast<size_t>(e_.heads * e_.dim);
    std::vector<bf16> q;
    std::vector<int32_t> begin = {0}, context, kv_begin, table;
    size_t longest = 1;
    for (const auto& pages : pool.pages) longest = std::max(longest, pages.size());
    for (const Piece& p : pieces) {
      const auto b = size_t(p.sequence);
      const auto from = q_.begin() + ptrdiff_t(size_t(begins_[b] + p.first) * row);
      q.insert(q.end(), from, from + ptrdiff_t(size_t(p.count) * row));
      begin.push_back(begin.back() + p.count);
      context.push_back(p.first + p.count);
      kv_begin.push_back(begins_[b]);
      if (pool.pages.empty()) continue;
      table.insert(table.end(), pool.pages[b].begin(), pool.pages[b].end());
      table.resize(context.size() * longest, 1 << 30);  // an address nobody may touch
    }
    const int64_t tokens = begin.back(), sequences = int64_t(context.size());
    const Buffer<bf16> d_q(q), out(q.size());
    const Buffer<float> lse(size_t(tokens * e_.heads));
    const Buffer<int32_t> d_begin(begin), d_context(context), d_kv_begin(kv_begin), d_table(table);
    const Shape keys = {int64_t(pool.k.size()) / (e_.kv_heads * e_.dim), e_.kv_heads, e_.dim};
    Exec exec = runner().exec();
    cuda::attention(exec, {.q = view(d_q, {tokens, e_.heads, e_.dim}),
                     .k_pool = view(pool.k, keys),
                     .v_pool = view(pool.v, keys),
                     .query_begin = view(d_begin, {sequences + 1}),
                     .context = view(d_context, {sequences}),
                     .page_table = table.empty() ? Tensor()
                                                 : view(d_table, {sequences, int64_t(longest)}),
                     .kv_begin = table.empty() ? view(d_kv_begin, {sequences}) : Tensor(),
                     .page_size = pool.page_size,
                     .scale = e_.scale(),
                     .out = view(out, {tokens, e_.heads, e_.dim}),
                     .lse = view(lse, {tokens, e_.heads})});
    return {out.host(), lse.host()};
  }

  Problem e_;
  Training<bf16> t_;
  std::vector<bf16> q_, k_, v_;
  std::vector<int32_t> begins_;
  Rows base_;
};

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
        if (first < p.count) pieces.push_back({p.sequence, first, std::min(chunk, p.count - first)});
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
    rows += bits.differing(token % 2 ? paged : packed, pieces);
  }
  report("decode", rows);
  report("NaN later", bits.differing(bits.spoiled(80, NAN), bits.wholes(), 80));
  report("infinity later", bits.differing(bits.spoiled(90, INFINITY), bits.wholes(), 90));
  report("huge later", bits.differing(bits.spoiled(70, 1e30F), bits.wholes(), 70));
  std::printf("\n");
}

// ---- time

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

void time_decode(int64_t sequences, int64_t heads, int64_t kv_heads, int64_t dim, int context) {
  constexpr int kPage = 16;
  const int64_t per_sequence = (context + kPage - 1) / kPage, slots = sequences * per_sequence * kPage;
  const auto q = normals<bf16>(sequences * heads * dim, 1);
  const auto k = normals<bf16>(slots * kv_heads * dim, 2), v = normals<bf16>(slots * kv_heads * dim, 3);
  std::vector<int32_t> pages(size_t(sequences * per_sequence)), begins(size_t(sequences) + 1);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  std::iota(begins.begin(), begins.end(), 0);
  const Buffer<int32_t> d_pages(pages), d_begins(begins),
      d_context(std::vector<int32_t>(size_t(sequences), context));
  const Buffer<bf16> out(q.size());
  const auto run = [&] {
    Exec exec = runner().exec();
    cuda::attention(exec, {.q = view(q, {sequences, heads, dim}),
                     .k_pool = view(k, {slots, kv_heads, dim}),
                     .v_pool = view(v, {slots, kv_heads, dim}),
                     .query_begin = view(d_begins, {sequences + 1}),
                     .context = view(d_context, {sequences}),
                     .page_table = view(d_pages, {sequences, per_sequence}),
                     .kv_begin = {},
                     .page_size = kPage,
                     .scale = 1 / std::sqrt(static_cast<float>(dim)),
                     .out = view(out, {sequences, heads, dim}),
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
  const double bytes = 4.0 * static_cast<double>(sequences * context * kv_heads * dim);
  std::printf("| decode   | %4d x %5d | %2d/%d %3d | %9.1f us | %7.0f GB/s    | graph %s |\n",
              int(sequences), context, int(heads), int(kv_heads), int(dim), time * 1e6, bytes / time / 1e9,
              verdict(same));
}

void time_training(int64_t sequences, int length, int64_t heads, int64_t kv_heads, int64_t dim) {
  const Problem e = {heads, kv_heads, dim, std::vector<int32_t>(size_t(sequences), length)};
  Training<bf16> t(e);
  const double forward = seconds([&] { t.forward(); });
  const double backward = seconds([&] { t.backward(); });
  for (const bool is_forward : {true, false}) {
    const double time = is_forward ? forward : backward;
    std::printf("| %s | %4d x %5d | %2d/%d %3d | %9.1f us | %7.1f TFLOP/s |          |\n",
                is_forward ? "forward " : "backward", int(sequences), length, int(heads), int(kv_heads),
                int(dim), time * 1e6, e.flops() * (is_forward ? 1 : 2.5) / time / 1e12);
  }
}

void time_all() {
  std::printf("| what     | seqs x tokens | heads   D | time         | speed           |\n");
  time_decode(256, 32, 8, 128, 1536);
  time_decode(256, 16, 8, 128, 1536);
  time_decode(256, 32, 8, 64, 1536);
  time_decode(32, 32, 8, 128, 1536);
  time_decode(8, 32, 8, 128, 1536);
  time_training(8, 4096, 32, 8, 128);
  time_training(8, 4096, 16, 8, 128);
  time_training(8, 4096, 32, 8, 64);
  time_training(64, 512, 32, 8, 128);
  time_training(1, 16384, 32, 8, 128);
}

int main_of(int argc, char** argv) {
  const auto wants = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* a) { return !std::strcmp(a, name); });
  };
  if (wants("check")) check_all();
  if (wants("bits"))
    for (const auto& [heads, kv_heads, dim] :
         {std::array<int64_t, 3>{8, 2, 128}, {2, 2, 128}, {8, 1, 64}, {4, 2, 64}, {14, 2, 64}, {40, 2, 128}, {4, 2, 256}, {6, 2, 80}, {6, 2, 5}})
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
