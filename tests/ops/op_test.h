// What tests of ops share: somewhere to run them, random operands, comparisons, gradients by
// differences.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "ops/backend.h"
#include "tensor/tensor.h"
#include "tests/support/test_device.h"

namespace miles::test {

/// A launch returns when its kernel is done: these tests, and no others, read results right after
/// an op. CUDA looks when it starts, which is after this.
inline const int kLaunchesBlock = ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);

/// The test device with a stream and a workspace that holds NaN: what an op forgets to write shows.
class OpBench {
 public:
  OpBench() : device_(make_test_device()), stream_(device_->make_stream(StreamUse::compute)) {
    const int64_t bytes = workspace_bytes(device_->kind());
    // On the CPU from the heap: AddressSanitizer watches its ends.
    if (on_cuda()) {
      workspace_ = device_->memory().reserve(bytes);
      device_->memory().commit(workspace_, bytes);
    } else {
      workspace_ = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(bytes)));
    }
    static const std::vector<std::byte, TestAllocator<std::byte>> ones(static_cast<size_t>(bytes),
                                                                       std::byte{0xFF});
    stream_->copy(workspace_, ones.data(), bytes);
  }
  ~OpBench() {
    const int64_t bytes = workspace_bytes(device_->kind());
    if (on_cuda()) {
      device_->memory().decommit(workspace_, bytes);
      device_->memory().unreserve(workspace_, bytes);
    } else {
      std::free(workspace_);
    }
  }
  OpBench(const OpBench&) = delete;
  OpBench& operator=(const OpBench&) = delete;

  Exec exec() {
    return {
        *device_, *stream_, {workspace_, static_cast<size_t>(workspace_bytes(device_->kind()))}};
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::byte* workspace_;
};

/// So many OpenMP threads, whatever the machine has. Under ThreadSanitizer always one: it does not
/// see how OpenMP's own library synchronises.
constexpr int openmp_threads([[maybe_unused]] int wanted) {
#if defined(__SANITIZE_THREAD__)
  return 1;
#else
  return wanted;
#endif
}

/// Runs `body` with openmp_threads(threads).
inline void with_threads(int threads, const std::function<void()>& body) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(openmp_threads(threads));
  body();
  omp_set_num_threads(before);
}

/// Relative error of one rounding to T.
template <class T>
constexpr double kUnit = 0x1p-24;
template <>
inline constexpr double kUnit<BFloat16> = 0x1p-8;

template <class T>
using Values = std::vector<T, TestAllocator<T>>;

/// n normal values times `scale`; the same for the same `stream`.
template <class T>
Values<T> normals(int64_t n, uint64_t stream, float scale = 1) {
  Values<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    values[static_cast<size_t>(i)] =
        from_float<T>(scale * normal(11, RngUse::test, stream, static_cast<uint64_t>(i)));
  return values;
}

template <class T>
Tensor tensor(Values<T>& values, Shape shape) {
  return Tensor::view(std::span<T>(values), shape);
}
template <class T>
Tensor tensor(Values<T>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

/// The same values at an address that is no multiple of 16 bytes: kernels that take several elements
/// at a time take them one by one there.
template <class T>
class Displaced {
 public:
  explicit Displaced(const Values<T>& values) : values_(1) {
    values_.insert(values_.end(), values.begin(), values.end());
  }
  Tensor tensor(Shape shape) { return Tensor::view(std::span<T>(values_).subspan(1), shape); }
  Tensor tensor() { return tensor({static_cast<int64_t>(values_.size()) - 1}); }
  Values<T> values() const { return {values_.begin() + 1, values_.end()}; }

 private:
  Values<T> values_;
};

template <class T>
std::vector<double> doubles(const Values<T>& values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const T& value : values) result.push_back(static_cast<double>(to_float(value)));
  return result;
}

template <class T>
bool same_bits(const Values<T>& a, const Values<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Rows [first, first + count) of [n, columns] values.
template <class T>
Values<T> rows_of(const Values<T>& values, int64_t columns, int64_t first, int64_t count) {
  return {values.begin() + first * columns, values.begin() + (first + count) * columns};
}

/// |got − want| ≤ relative·|want| + absolute, everywhere.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};
template <class T>
void expect_near(const Values<T>& got, const std::vector<double>& want, Tolerance tolerance,
                 const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(static_cast<double>(to_float(got[i])), want[i],
                tolerance.relative * std::abs(want[i]) + tolerance.absolute)
        << what << " at " << i << " of " << got.size();
}

/// Central differences of a scalar function of x, in f64.
inline std::vector<double> differences(
    std::vector<double> x, const std::function<double(const std::vector<double>&)>& function) {
  std::vector<double> gradient;
  for (double& element : x) {
    const double kept = element, step = 1e-5 * std::max(1.0, std::abs(kept));
    element = kept + step;
    const double above = function(x);
    element = kept - step;
    const double below = function(x);
    element = kept;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

using StorageTypes = ::testing::Types<float, BFloat16>;

}  // namespace miles::test
