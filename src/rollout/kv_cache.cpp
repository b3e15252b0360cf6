#include "rollout/kv_cache.h"

namespace miles {

KvCache::KvCache(const ModelConfig& config, int64_t pages, int64_t page_size, Memory memory)
    : layers_(config.num_hidden_layers),
      page_size_(page_size),
      dtype_(config.dtype),
      shape_({pages * page_size, config.num_key_value_heads, config.head_dim}),
      region_(memory, Place::device, "rollout.kv_cache",
              2 * layers_ * shape_.elements() * size_of(dtype_)) {}

void KvCache::copy(Stream& stream, std::span<const PageCopy> copies) const {
  for (const PageCopy& copy : copies) {
    for (int64_t index = 0; index < 2 * layers_; ++index) {
      const Tensor from = pool(index).rows(copy.from * page_size_, page_size_);
      const Tensor to = pool(index).rows(copy.to * page_size_, page_size_);
      stream.copy(to.data(), from.data(), to.bytes());
    }
  }
}

Tensor KvCache::pool(int64_t index) const {
  return region_.tensor(dtype_, shape_, index * shape_.elements() * size_of(dtype_));
}

}  // namespace miles
