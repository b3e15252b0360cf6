#include "tensor/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace miles {

Shape::Shape(std::initializer_list<int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  MILES_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= extents_[static_cast<size_t>(i)];
  return n;
}

std::string Shape::str() const {
  return fmt::format("[{}]", fmt::join(extents_.begin(), extents_.begin() + rank_, ", "));
}

Tensor Tensor::rows(int64_t first, int64_t count) const {
  MILES_CHECK(shape_.rank() > 0 && first >= 0 && count >= 0 && first + count <= shape_[0],
              "rows {}+{} of {}", first, count, shape_.str());
  const int64_t row_bytes = shape_[0] == 0 ? 0 : bytes() / shape_[0];
  Shape shape;
  switch (shape_.rank()) {
    case 1:
      shape = {count};
      break;
    case 2:
      shape = {count, shape_[1]};
      break;
    case 3:
      shape = {count, shape_[1], shape_[2]};
      break;
    default:
      shape = {count, shape_[1], shape_[2], shape_[3]};
  }
  return {static_cast<std::byte*>(data_) + first * row_bytes, dtype_, shape};
}

Tensor Tensor::reshape(Shape shape) const {
  MILES_CHECK(shape.elements() == elements(), "{} as {}", shape_.str(), shape.str());
  return {data_, dtype_, shape};
}

}  // namespace miles
