// Reading tests/fixtures/model and tests/fixtures/actor (their README says what is in them), and a
// model whose weights lie in plain host memory. Header only: not every test program links the
// readers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hub/safetensors.h"
#include "model/config.h"
#include "model/hf_config.h"
#include "model/layout.h"
#include "model/weights_io.h"

namespace miles::test {

inline std::filesystem::path fixture_dir() {
  return std::filesystem::path(MILES_SOURCE_DIR) / "tests" / "fixtures";
}

/// A safetensors file of reference values.
class Fixture {
 public:
  explicit Fixture(const std::filesystem::path& path) : file_(path) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    return values<float>(name, DType::f32);
  }
  std::vector<int32_t> ints(const std::string& name) const {
    return values<int32_t>(name, DType::i32);
  }
  float scalar(const std::string& name) const { return floats(name).at(0); }

 private:
  template <class T>
  std::vector<T> values(const std::string& name, DType dtype) const {
    const Tensor view = file_.view(name);
    EXPECT_EQ(view.dtype(), dtype) << name;
    std::vector<T> result(static_cast<size_t>(view.elements()));
    std::memcpy(result.data(), view.data(), static_cast<size_t>(view.bytes()));
    return result;
  }

  SafetensorsFile file_;
};

/// Packed samples, cut at `lengths` into one vector each.
template <class T>
std::vector<std::vector<T>> cut(const std::vector<T>& packed, const std::vector<int32_t>& lengths) {
  std::vector<std::vector<T>> parts;
  auto at = packed.begin();
  for (const int32_t length : lengths) {
    parts.emplace_back(at, at + length);
    at += length;
  }
  EXPECT_EQ(at, packed.end());
  return parts;
}

/// A model's config, layout and flat weights.
class FlatModel {
 public:
  explicit FlatModel(const std::filesystem::path& directory)
      : config(read_hf_config(directory)),
        layout(config),
        bytes_(static_cast<size_t>(layout.elements() * size_of(config.dtype))),
        flat(bytes_.data(), config.dtype, {layout.elements()}) {
    load_weights(directory, config, layout, flat);
  }
  /// Random weights.
  FlatModel(const ModelConfig& model, uint64_t seed)
      : config(model),
        layout(config),
        bytes_(static_cast<size_t>(layout.elements() * size_of(config.dtype))),
        flat(bytes_.data(), config.dtype, {layout.elements()}) {
    init_random_weights(config, layout, seed, flat);
  }
  FlatModel(const FlatModel&) = delete;
  FlatModel& operator=(const FlatModel&) = delete;

  const ModelConfig config;
  const ParamLayout layout;

 private:
  std::vector<std::byte> bytes_;

 public:
  const Tensor flat;  // [layout.elements()] T
};

/// The largest |got - expected|; infinite when lengths differ or a value is no number.
inline double largest_difference(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - expected[i]);
    if (std::isnan(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest;
}

inline double largest_magnitude(std::span<const float> values) {
  double largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

}  // namespace miles::test
