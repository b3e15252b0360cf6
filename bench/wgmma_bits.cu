// Are Hopper's warpgroup products, as attention uses them, the bits of m16n8k16 products over the
// same elements in the same order? The contract of ops/attention.h rests on it: prefill and
// training use the former, decode the latter.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "ops/cuda/attention_warpgroup.cuh"

namespace miles::cuda {
namespace {

constexpr int kSum = 128;  // elements of a chain
enum class How { warps, tiles, fragments_columns, fragments_rows };

/// c += a · bᵀ; a [64, kSum], b [kN, kSum], c [64, kN].
template <int kN, How kHow>
__global__ void __launch_bounds__(128) multiply(const bf16* a, const bf16* b, float* c) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  unsigned char* const b_tile = shared + kSum / 64 * kHalfTile;
  const auto put = [](unsigned char* tile, int rows, int r, int i, bf16 x) {
    *reinterpret_cast<bf16*>(tile + i / 64 * rows * 128 + r * 128 + ((i / 8 ^ r) % 8 << 4) +
                             i % 8 * 2) = x;
  };
  for (int i = threadIdx.x; i < 64 * kSum; i += 128) put(shared, 64, i / kSum, i % kSum, a[i]);
  for (int i = threadIdx.x; i < kN * kSum; i += 128)
    if (kHow == How::fragments_rows)
      put(b_tile, kSum, i % kSum, i / kSum, b[i]);
    else
      put(b_tile, kN, i / kSum, i % kSum, b[i]);
  show_to_products();
  __syncthreads();
  float acc[kN / 8][4];
  for (int n = 0; n < kN / 8; ++n)
    for (int i = 0; i < 4; ++i) acc[n][i] = c[(row + i / 2 * 8) * kN + n * 8 + column + i % 2];
  const auto pair = [](const bf16* x) { return *reinterpret_cast<const uint32_t*>(x); };
  for (int k = 0; k < kSum; k += 16) {
    uint32_t w[1][4];
    for (int i = 0; i < 4; ++i)
      w[0][i] = pair(a + (row + i % 2 * 8) * kSum + k + column + i / 2 * 8);
    const int at = k / 64;
    const uint32_t left = matrix(shared_address(shared) + at * kHalfTile + k % 64 * 2),
                   right = matrix(shared_address(b_tile) + at * kN * 128 + k % 64 * 2),
                   rows = matrix(shared_address(b_tile) + k * 128, kSum * 128);
    hold(acc);
    ready(w);
    products_begin();
    if constexpr (kHow == How::warps)
      for (int n = 0; n < kN / 8; ++n) {
        const bf16* const from = b + (n * 8 + lane / 4) * kSum + k + column;
        mma(acc[n], w[0], pair(from), pair(from + 8));
      }
    else if constexpr (kHow == How::tiles)
      wgmma<false>(acc, left, right, true);
    else
      wgmma<kHow == How::fragments_rows>(acc, w[0], kHow == How::fragments_rows ? rows : right,
                                         true);
    products_commit();
    products_wait<0>();
    hold(acc);
  }
  for (int n = 0; n < kN / 8; ++n)
    for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * kN + n * 8 + column + i % 2] = acc[n][i];
}

std::mt19937_64 random_bits(1);

float number(int kind) {
  const float x = std::normal_distribution<float>()(random_bits);
  const auto any = static_cast<int>(random_bits() % 61);
  if (kind == 1) return std::ldexp(x, any % 17 - 8);
  if (kind == 2) return std::ldexp(x, any - 30);
  if (kind == 3) return std::ldexp(x, -70 - any % 8);
  if (kind == 4) return any % 2 ? x : any % 4 ? -0.0F : 0.0F;
  if (kind == 5 && any == 0) return random_bits() % 4 ? INFINITY : NAN;
  return x;
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* to = nullptr;
  check(cudaMalloc(&to, values.size() * sizeof(T)), "memory");
  check(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return to;
}

template <int kN, How kHow>
std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b,
                           std::vector<float> c) {
  constexpr int kBytes = (64 + kN) * kSum * 2;
  allow_shared<multiply<kN, kHow>>(kBytes);
  bf16 *const on_a = on_device(a), *const on_b = on_device(b);
  float* const on_c = on_device(c);
  multiply<kN, kHow><<<1, 128, kBytes>>>(on_a, on_b, on_c);
  check(cudaGetLastError(), "launch");
  check(cudaMemcpy(c.data(), on_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost), "products");
  cudaFree(on_a);
  cudaFree(on_b);
  cudaFree(on_c);
  return c;
}

template <int kN, How kHow>
int64_t differing(const std::vector<bf16>& a, const std::vector<bf16>& b,
                  const std::vector<float>& c) {
  const auto x = product<kN, kHow>(a, b, c), y = product<kN, How::warps>(a, b, c);
  int64_t count = 0;
  for (size_t i = 0; i < x.size(); ++i) count += std::memcmp(&x[i], &y[i], 4) != 0;
  return count;
}

template <int kN>
int64_t compare() {
  int64_t all = 0;
  const char* names[] = {"normal",     "range 2^±8",    "range 2^±30", "subnormal",
                         "many zeros", "infinity, NaN", "cancelling"};
  for (int kind = 0; kind < 7; ++kind) {
    int64_t tiles = 0, columns = 0, rows = 0;
    for (int time = 0; time < 20; ++time) {
      std::vector<bf16> a(64 * kSum), b(kN * kSum);
      std::vector<float> c(64 * kN);
      for (bf16& x : a) x = __float2bfloat16(number(kind));
      for (bf16& x : b) x = __float2bfloat16(number(kind));
      for (float& x : c) x = time % 2 ? 0 : number(kind);
      if (kind == 6)  // but for a last place here and there
        for (size_t i = 0; i < a.size(); i += 2) a[i + 1] = a[i];
      if (kind == 6)
        for (size_t i = 0; i < b.size(); i += 2)
          b[i + 1] =
              __float2bfloat16(-__bfloat162float(b[i]) * (random_bits() % 4 ? 1.0F : 1.0078125F));
      if constexpr (kN == 64) tiles += differing<kN, How::tiles>(a, b, c);
      columns += differing<kN, How::fragments_columns>(a, b, c);
      rows += differing<kN, How::fragments_rows>(a, b, c);
    }
    std::printf("n %3d %-14s differ: tiles %ld, fragments %ld, fragments by rows %ld\n", kN,
                names[kind], long(tiles), long(columns), long(rows));
    all += tiles + columns + rows;
  }
  return all;
}

}  // namespace
}  // namespace miles::cuda

int main() {
  try {
    return miles::cuda::compare<64>() + miles::cuda::compare<128>() != 0;
  } catch (const miles::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}
