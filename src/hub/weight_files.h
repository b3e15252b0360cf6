// The weights of a Hugging Face model directory: model.safetensors, or the shards that
// model.safetensors.index.json lists.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/safetensors.h"
#include "tensor/tensor.h"

namespace miles {

/// Opens and checks every file at once, so that damage is found before anything is
/// loaded.
class WeightFiles {
 public:
  /// Where both spellings are there, model.safetensors counts, as in transformers.
  /// Throws Error{data}: no weights, a damaged file, an index that names an absent shard or tensor.
  explicit WeightFiles(const std::filesystem::path& dir);

  /// Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return files_.find(name) != files_.end(); }
  /// The file that holds the tensor. The name must be there.
  const SafetensorsFile& file_of(std::string_view name) const;

  /// Throws Error{data} naming file, tensor, the shape found and the one expected.
  void check_shape(const std::string& name, const Shape& expected) const;

  /// Reads F32, BF16 or F16 into `to` (f32 or bf16), rounding to nearest even.
  /// Throws Error{data} when the tensor is absent, damaged, of another shape or of another type.
  void read(const std::string& name, const Tensor& to) const;

 private:
  void open_shards(const std::filesystem::path& index);

  std::filesystem::path dir_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SafetensorsFile>> open_;
  std::map<std::string, const SafetensorsFile*, std::less<>> files_;  // by tensor; not owned
};

}  // namespace miles
