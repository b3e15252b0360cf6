// Problems for the bench of CUDA's attention: operands on the device, and running both directions.
#pragma once

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
    check(cudaDeviceSynchronize(), "copy");  // the runner's stream waits for no other
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
  for (int part = 0; part < 4; ++part)
    sum += static_cast<float>((h >> (16 * part)) & 0xFFFF) / 65536;
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

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace
}  // namespace miles::cuda
