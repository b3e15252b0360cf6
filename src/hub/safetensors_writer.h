// Writing the safetensors format as a stream: all tensors are declared first (the header needs
// their sizes), then their data follows in the same order, so that a model is never in memory
// twice.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hub/checksum.h"
#include "hub/output_file.h"
#include "tensor/tensor.h"

namespace miles {

/// A tensor that will be written.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

/// The file appears under its name, whole, in finish(); before that, or after an error, nothing
/// does. It has checksums (hub/safetensors_checksums.h), which SafetensorsFile compares.
class SafetensorsWriter {
 public:
  /// Writes the header. Names are distinct; wider types come before narrower ones, so that every
  /// tensor is aligned. Throws Error{data} (disk full, no permission, …).
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// Appends `piece` to the tensor whose turn it is; a tensor may come in several pieces, in order.
  /// `name` and the type must be that tensor's. Throws Error{data}.
  void write(const std::string& name, const Tensor& piece);

  /// Every declared tensor must be complete. Syncs to disk and renames. Throws Error{data}.
  void finish();

 private:
  void skip_complete_tensors();
  void put_digits(std::string_view key, const std::string& digits);

  std::vector<TensorDeclaration> tensors_;
  std::string header_;  // length and JSON, as in the file; checksums come with their tensors
  OutputFile file_;
  size_t current_ = 0;      // index of the tensor whose turn it is
  int64_t done_bytes_ = 0;  // bytes of it that are written
  Checksum checksum_;       // of those
};

}  // namespace miles
