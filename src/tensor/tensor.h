// Tensor: a view of row-major elements that somebody else owns (a Region, a Lease, a vector).
// Copying a Tensor copies the view. It never allocates and never frees.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace miles {

/// Up to four extents, outermost first. The empty shape is a scalar: one element.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int i) const {
    MILES_CHECK(i >= 0 && i < rank_, "extent {} of rank {}", i, rank_);
    return extents_[static_cast<size_t>(i)];
  }
  int64_t elements() const;
  bool operator==(const Shape& other) const = default;
  /// "[2, 3]"
  std::string str() const;

 private:
  std::array<int64_t, kMaxRank> extents_{};  // unused ones are 0
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  /// A view of `values`, which must outlive it. `shape` must have as many elements.
  template <class T>
  static Tensor view(std::span<T> values, Shape shape) {
    MILES_CHECK(shape.elements() == static_cast<int64_t>(values.size()), "{} elements as {}",
                values.size(), shape.str());
    return {const_cast<std::remove_const_t<T>*>(values.data()), dtype_of<std::remove_const_t<T>>(),
            shape};
  }

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  explicit operator bool() const { return data_ != nullptr; }

  /// The elements as T; T must be the dtype.
  template <class T>
  T* as() const {
    MILES_CHECK(dtype_ == dtype_of<T>(), "a {} tensor used as {}", name_of(dtype_),
                name_of(dtype_of<T>()));
    return static_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), static_cast<size_t>(elements())};
  }

  /// Rows [first, first + count) of the outermost extent.
  Tensor rows(int64_t first, int64_t count) const;
  /// The same elements under another shape.
  Tensor reshape(Shape shape) const;

 private:
  void* data_ = nullptr;  // not owned
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace miles
