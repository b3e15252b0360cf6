#include "hub/convert.h"

#include <cstring>

#include "hub/parallel_ranges.h"

namespace miles {
namespace {

constexpr int64_t kGrain = 1 << 18;  // elements: enough work to pay for a thread

/// Elements [first, last). The source is loaded through memcpy because it may be misaligned.
template <class From, class To>
void convert_range(const std::byte* from, To* to, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    to[i] = from_float<To>(to_float(value));
  }
}

template <class To>
void convert_to(const Tensor& from, To* to) {
  const auto* source = static_cast<const std::byte*>(from.data());
  parallel_ranges(from.elements(), kGrain, [&](int64_t first, int64_t last) {
    switch (from.dtype()) {
      case DType::f32:
        return convert_range<float>(source, to, first, last);
      case DType::bf16:
        return convert_range<BFloat16>(source, to, first, last);
      case DType::f16:
        return convert_range<Half>(source, to, first, last);
      default:
        MILES_CHECK(false, "conversion from {}", name_of(from.dtype()));
    }
  });
}

void copy(const Tensor& from, const Tensor& to) {
  const int64_t size = size_of(from.dtype());
  parallel_ranges(from.elements(), kGrain, [&](int64_t first, int64_t last) {
    std::memcpy(static_cast<std::byte*>(to.data()) + first * size,
                static_cast<const std::byte*>(from.data()) + first * size,
                static_cast<size_t>((last - first) * size));
  });
}

}  // namespace

void convert(const Tensor& from, const Tensor& to) {
  MILES_CHECK(from.elements() == to.elements(), "{} into {}", from.shape().str(), to.shape().str());
  // A copy keeps every bit, NaN payloads too.
  if (from.dtype() == to.dtype()) return copy(from, to);
  switch (to.dtype()) {
    case DType::f32:
      return convert_to(from, to.as<float>());
    case DType::bf16:
      return convert_to(from, to.as<BFloat16>());
    default:
      MILES_CHECK(false, "conversion to {}", name_of(to.dtype()));
  }
}

}  // namespace miles
