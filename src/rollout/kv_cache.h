// The key/value cache on the device: pages for every block of the model, in one region.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "memory/region.h"
#include "model/config.h"
#include "rollout/block_manager.h"
#include "tensor/tensor.h"

namespace miles {

class KvCache {
 public:
  /// Takes no memory yet. Tag "rollout.kv_cache".
  KvCache(const ModelConfig& config, int64_t pages, int64_t page_size, Memory memory);

  void onload() { region_.commit(); }
  /// What it held is lost.
  void offload() { region_.release(); }
  bool resident() const { return region_.committed(); }
  int64_t bytes() const { return region_.bytes(); }

  /// [pages · page_size, Hkv, D] T: one block's keys; row r is position r % page_size of page r /
  /// page_size.
  Tensor keys(int64_t layer) const { return pool(layer); }
  Tensor values(int64_t layer) const { return pool(layers_ + layer); }

  /// Copies whole pages, in order, in every block.
  void copy(Stream& stream, std::span<const PageCopy> copies) const;

 private:
  Tensor pool(int64_t index) const;

  int64_t layers_;     // blocks of the model
  int64_t page_size_;  // tokens
  DType dtype_;
  Shape shape_;    // of one pool
  Region region_;  // keys of each block, then values of each block
};

}  // namespace miles
