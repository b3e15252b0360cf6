// The engine's weights: a region that is filled from the weights at rest, piece by piece, and knows
// which version of them it holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "memory/region.h"
#include "model/config.h"
#include "model/layout.h"
#include "tensor/tensor.h"

namespace miles {

class RolloutWeights {
 public:
  /// Takes no memory yet. Tag "rollout.weights". `layout` must outlive it.
  RolloutWeights(const ModelConfig& config, const ParamLayout& layout, Memory memory);

  /// Brings memory; unless it was there already the content is undefined and of no version.
  void onload() { region_.commit(); }
  void offload();
  bool resident() const { return region_.committed(); }
  int64_t bytes() const { return region_.bytes(); }

  /// Of the weights that are there; none when there are none, or nothing known is in their memory.
  std::optional<int64_t> version() const { return version_; }

  /// Copies all of `flat` [layout.elements()] T, on the device or the host. Done when it returns.
  void update(Stream& stream, const Tensor& flat, int64_t version);
  /// Fills every byte with 0xFF, a NaN in every element; no version then.
  void poison(Stream& stream);
  /// Names of the parameters that differ from `flat` in any bit; "(padding)" when elements between
  /// do.
  std::vector<std::string> differences(Stream& stream, const Tensor& flat) const;

  /// Start of the group's weights.
  std::byte* group(const Group& group) const {
    return region_.data() + group.offset * size_of(dtype_);
  }

 private:
  void check_flat(const Tensor& flat) const;

  const ParamLayout& layout_;
  DType dtype_;
  Region region_;
  std::optional<int64_t> version_;
};

}  // namespace miles
