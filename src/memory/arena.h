// Arena: tensors one after the other inside a region. With no region it only measures, so that the
// code that places tensors is also the code that says how much they take.
#pragma once

#include "tensor/tensor.h"

namespace miles {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes; every tensor starts at a multiple of it

  /// Measures only: tensors have shapes, and addresses that nobody may touch.
  Arena() = default;
  /// Places tensors in [base, base + capacity).
  Arena(std::byte* base, int64_t capacity) : base_(base), capacity_(capacity) {}

  /// The next tensor. Aborts when the capacity is passed: sizes come from a measuring run of the
  /// same code.
  Tensor allocate(DType dtype, Shape shape) {
    const Tensor tensor(base_ + used_, dtype, shape);
    used_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    MILES_CHECK(used_ <= capacity_, "arena of {} bytes asked for {}", capacity_, used_);
    return tensor;
  }

  /// [bytes] u8: a tensor of this arena and all that came after it, as one.
  Tensor since(const Tensor& first) const {
    return {first.data(), DType::u8, {base_ + used_ - static_cast<std::byte*>(first.data())}};
  }

  int64_t used() const { return used_; }  // bytes, padding included

 private:
  std::byte* base_ = nullptr;
  int64_t capacity_ = INT64_MAX;
  int64_t used_ = 0;
};

}  // namespace miles
