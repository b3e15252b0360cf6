// Writing the weights of a Hugging Face model directory as a stream: model.safetensors, or shards
// with model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/safetensors_writer.h"
#include "tensor/tensor.h"

namespace miles {

/// Write access: one file, or shards and an index where they exceed `shard_bytes`. A tensor is
/// never split. The index comes last: without it, shards are no model.
class WeightFilesWriter {
 public:
  static constexpr int64_t kShardBytes = 5'000'000'000;  // Hugging Face's default

  /// Creates `dir`, which should hold no other weights. Throws Error{data}.
  WeightFilesWriter(std::filesystem::path dir, std::vector<TensorDeclaration> tensors,
                    int64_t shard_bytes = kShardBytes);

  /// As SafetensorsWriter's: in the order declared, in one piece or several. Throws Error{data}.
  void write(const std::string& name, const Tensor& piece);

  /// Completes the last file, writes the index, and removes the other spelling's file, which would
  /// contradict what was written. Throws Error{data}.
  void finish();

 private:
  struct Shard {
    std::string file;                        // name within the directory
    std::vector<TensorDeclaration> tensors;  // in the order declared
  };
  void open_next();

  std::filesystem::path dir_;
  std::vector<Shard> shards_;
  std::map<std::string, size_t> shard_of_;     // by tensor
  std::unique_ptr<SafetensorsWriter> writer_;  // of shards_[next_ - 1]
  size_t next_ = 0;                            // shards opened so far
};

}  // namespace miles
