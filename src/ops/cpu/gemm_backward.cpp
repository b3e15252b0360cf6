// The gradients of `linear` without AMX, by oneDNN. C is cut into a fixed grid of tiles and each
// tile is one single-threaded product, so neither the number of threads nor who computes a tile can
// change a bit. f32, and bf16 that the processor multiplies, go to oneDNN where they lie; other
// bf16 is converted to f32 in blocks first.
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <span>

#include "base/error.h"
#include "ops/cpu/gemm.h"

namespace miles::cpu {
namespace {

// A tile of C, and how much of the inner extent is converted at once.
constexpr int64_t kDirectTile = 256;
constexpr int64_t kRows = 128, kColumns = 256, kInner = 256;
constexpr int64_t kMinParallelWork = 1 << 17;  // multiply-adds; below, waking threads costs more

/// An operand as stored: element (i, j) is at data + i·row + j·column, one of the strides being 1.
struct Matrix {
  const void* data;
  int64_t row, column;
};

/// C = A · B, or C += A · B.
struct Product {
  Matrix a;         // [m, k]
  Matrix b;         // [k, n]
  Tensor c;         // [m, n] contiguous
  int64_t m, n, k;  // extents
  DType dtype;      // of A and B
  Accumulate accumulate;
};

/// Rows × columns of C.
struct Tile {
  int64_t row, rows;
  int64_t column, columns;
};

/// While it lives, this thread's library calls start no threads.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

template <class T>
const T* at(const Matrix& x, int64_t i, int64_t j) {
  return static_cast<const T*>(x.data) + i * x.row + j * x.column;
}

/// The distance between stored lines, for a library that insists on at least a line's length.
int64_t leading(const Matrix& x, int64_t rows, int64_t columns) {
  return x.column == 1 ? std::max(x.row, columns) : std::max(x.column, rows);
}

struct SgemmArgs {
  Matrix a, b;      // f32
  float* c;         // [m, n]
  int64_t c_row;    // elements between C's rows
  int64_t m, n, k;  // extents
  bool add;         // to what C holds
};

void sgemm(const SgemmArgs& g) {
  const char trans_a = g.a.column == 1 ? 'N' : 'T', trans_b = g.b.column == 1 ? 'N' : 'T';
  const auto status =
      dnnl_sgemm(trans_a, trans_b, g.m, g.n, g.k, 1.0F, static_cast<const float*>(g.a.data),
                 leading(g.a, g.m, g.k), static_cast<const float*>(g.b.data),
                 leading(g.b, g.k, g.n), g.add ? 1.0F : 0.0F, g.c, g.c_row);
  MILES_CHECK(status == dnnl_success, "oneDNN's sgemm of {}x{}x{} returned {}", g.m, g.n, g.k,
              static_cast<int>(status));
}

void f32_tile(const Product& p, const Tile& t) {
  const Matrix a{at<float>(p.a, t.row, 0), p.a.row, p.a.column};
  const Matrix b{at<float>(p.b, 0, t.column), p.b.row, p.b.column};
  sgemm({.a = a,
         .b = b,
         .c = p.c.as<float>() + t.row * p.n + t.column,
         .c_row = p.n,
         .m = t.rows,
         .n = t.columns,
         .k = p.k,
         .add = p.accumulate == Accumulate::yes});
}

/// One thread's share of the workspace when bf16 is converted.
struct Scratch {
  float a[kRows * kInner];
  float b[kInner * kColumns];
  float c[kRows * kColumns];
};
static_assert(sizeof(Scratch) <= kWorkspaceBytes && sizeof(Scratch) % 64 == 0);

/// The block [rows, columns] of x at (i, j) in f32, in x's own order.
Matrix converted(const Matrix& x, int64_t i, int64_t j, int64_t rows, int64_t columns, float* to) {
  const bool by_rows = x.column == 1;
  const int64_t lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  const int64_t stride = by_rows ? x.row : x.column;
  const BFloat16* from = at<BFloat16>(x, i, j);
  for (int64_t line = 0; line < lines; ++line)
    for (int64_t e = 0; e < length; ++e) to[line * length + e] = to_float(from[line * stride + e]);
  return by_rows ? Matrix{to, length, 1} : Matrix{to, 1, length};
}

void converted_tile(const Product& p, const Tile& t, Scratch& s) {
  const bool in_place = p.c.dtype() == DType::f32;
  float* c = in_place ? p.c.as<float>() + t.row * p.n + t.column : s.c;
  const int64_t c_row = in_place ? p.n : kColumns;
  for (int64_t k = 0; k < p.k; k += kInner) {
    const int64_t depth = std::min(kInner, p.k - k);
    sgemm({.a = converted(p.a, t.row, k, t.rows, depth, s.a),
           .b = converted(p.b, k, t.column, depth, t.columns, s.b),
           .c = c,
           .c_row = c_row,
           .m = t.rows,
           .n = t.columns,
           .k = depth,
           .add = k > 0 || (in_place && p.accumulate == Accumulate::yes)});
  }
  if (in_place) return;
  for (int64_t i = 0; i < t.rows; ++i) {
    BFloat16* to = p.c.as<BFloat16>() + (t.row + i) * p.n + t.column;
    const float* from = s.c + i * kColumns;
    if (p.accumulate == Accumulate::yes)
      for (int64_t j = 0; j < t.columns; ++j) to[j] = to_bfloat16(to_float(to[j]) + from[j]);
    else
      for (int64_t j = 0; j < t.columns; ++j) to[j] = to_bfloat16(from[j]);
  }
}

/// `scratch` is lent to the primitive where it suffices.
void native_tile(const Product& p, const Tile& t, std::span<std::byte> scratch) {
  using dnnl::memory;
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const bool f32_out = p.c.dtype() == DType::f32;
  const auto bf16 = memory::data_type::bf16, out = f32_out ? memory::data_type::f32 : bf16;
  const memory::desc a({t.rows, p.k}, bf16, memory::dims{p.a.row, p.a.column});
  const memory::desc b({p.k, t.columns}, bf16, memory::dims{p.b.row, p.b.column});
  const memory::desc c({t.rows, t.columns}, out, memory::dims{p.n, 1});
  dnnl::primitive_attr attr;
  if (p.accumulate == Accumulate::yes) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  using Matmul = dnnl::matmul;
  Matmul::primitive_desc kernel(Matmul::desc(a, b, c), attr, engine);
  if (kernel.scratchpad_desc().get_size() > scratch.size()) {
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::library);
    kernel = Matmul::primitive_desc(Matmul::desc(a, b, c), attr, engine);
  }
  const auto lend = [&](const memory::desc& d, const void* data) {
    return memory(d, engine, const_cast<void*>(data));
  };
  dnnl::stream stream(engine);
  auto* to = static_cast<std::byte*>(p.c.data()) + (t.row * p.n + t.column) * size_of(p.c.dtype());
  // oneDNN keeps a bounded, thread-safe cache of generated kernels: making one again is a look-up.
  Matmul(kernel).execute(stream,
                         {{DNNL_ARG_SRC, lend(a, at<BFloat16>(p.a, t.row, 0))},
                          {DNNL_ARG_WEIGHTS, lend(b, at<BFloat16>(p.b, 0, t.column))},
                          {DNNL_ARG_DST, lend(c, to)},
                          {DNNL_ARG_SCRATCHPAD, lend(kernel.scratchpad_desc(), scratch.data())}});
  stream.wait();
}

enum class Way { f32, native, converted };

Way way_of(const Product& p) {
  if (p.dtype == DType::f32) return Way::f32;
  static const bool has_bf16 = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & wanted) == wanted;
  }();
  return has_bf16 && bf16_path() == Bf16Path::native ? Way::native : Way::converted;
}

void run_tile(const Product& p, Way way, const Tile& t, std::span<std::byte> scratch) try {
  switch (way) {
    case Way::f32:
      return f32_tile(p, t);
    case Way::native:
      return native_tile(p, t, scratch);
    case Way::converted:
      return converted_tile(p, t, *reinterpret_cast<Scratch*>(scratch.data()));
  }
} catch (const dnnl::error& e) {  // must not leave a parallel region
  MILES_CHECK(false, "oneDNN: {} (a product of {}x{}x{})", e.what(), p.m, p.n, p.k);
}

void multiply(Exec& exec, const Product& p) {
  const Way way = way_of(p);
  const int64_t height = way == Way::converted ? kRows : kDirectTile;
  const int64_t width = way == Way::converted ? kColumns : kDirectTile;
  const int64_t across = (p.n + width - 1) / width, tiles = across * ((p.m + height - 1) / height);
  const auto room = static_cast<int64_t>(exec.workspace.size() / sizeof(Scratch));
  int64_t threads = std::min<int64_t>(omp_get_max_threads(), tiles);
  if (way == Way::converted) threads = std::min(threads, room);
  if (p.m * p.n * p.k < kMinParallelWork) threads = 1;
  const size_t share = exec.workspace.size() / static_cast<size_t>(threads) / 64 * 64;
#pragma omp parallel num_threads(static_cast <int>(threads)) if (threads > 1)
  {
    const SingleThreaded guard;
    const auto scratch =
        exec.workspace.subspan(static_cast<size_t>(omp_get_thread_num()) * share, share);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = i / across * height, column = i % across * width;
      run_tile(p, way,
               {.row = row,
                .rows = std::min(height, p.m - row),
                .column = column,
                .columns = std::min(width, p.n - column)},
               scratch);
    }
  }
}

}  // namespace

void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args) {
  const int64_t m = args.dy.dim(0), n = args.dy.dim(1), k = args.w.dim(1);
  multiply(exec, {.a = {args.dy.data(), n, 1},
                  .b = {args.w.data(), k, 1},
                  .c = args.dx,
                  .m = m,
                  .n = k,
                  .k = n,
                  .dtype = args.dy.dtype(),
                  .accumulate = args.accumulate});
}

void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args) {
  const int64_t m = args.dy.dim(0), n = args.dy.dim(1), k = args.x.dim(1);
  multiply(exec, {.a = {args.dy.data(), 1, n},
                  .b = {args.x.data(), k, 1},
                  .c = args.dw,
                  .m = n,
                  .n = k,
                  .k = m,
                  .dtype = args.dy.dtype(),
                  .accumulate = args.accumulate});
}

}  // namespace miles::cpu
