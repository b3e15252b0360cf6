// Reading the safetensors format: u64 little-endian length of the header, the header (JSON: name →
// {dtype, shape, data_offsets}, and "__metadata__"), then the tensors' bytes without gaps.
// Source: the format's description at https://huggingface.co/docs/safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hub/mapped_file.h"
#include "tensor/tensor.h"

namespace miles {

/// One tensor of a file, as its header describes it.
struct StoredTensor {
  std::string name;
  std::string dtype;             // the file's spelling: "F32", "BF16", "I64", …
  std::vector<int64_t> extents;  // outermost first; a file may hold more of them than a Shape can
  int64_t offset = 0;            // bytes from the start of the file
  int64_t bytes = 0;             // bytes

  /// "BF16 [2, 3]"
  std::string str() const;
};

class SafetensorsFile {
 public:
  /// Maps the file and checks its whole header: length, JSON, repeated names, known types, offsets
  /// that match shape and type and cover the data without gap or overlap. Throws Error{data} naming
  /// file, tensor and place. `if_damaged`: what to do about a file that is, or was cut short.
  explicit SafetensorsFile(
      std::filesystem::path path,
      std::string_view if_damaged = "fetch or copy it again, or take another checkpoint");

  const std::filesystem::path& path() const { return file_.path(); }
  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Without checksums.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Nothing when the file has no tensor of that name.
  const StoredTensor* find(std::string_view name) const;

  /// A view of the tensor's bytes in the file: read-only, possibly misaligned (convert() reads it;
  /// as<T> may not), valid while this lives. Throws Error{data} when the name is absent, when the
  /// type is none of DType's, or when the rank is beyond Shape's.
  Tensor view(std::string_view name) const;

  /// Reads the tensor's bytes. Throws Error{data} when the file says a checksum of them, and it is
  /// another one. Files of other programs say none.
  void check(std::string_view name) const;

  /// Takes a tensor's pages out of this process's resident memory, once it has been read.
  void drop_pages(std::string_view name) const;

 private:
  /// Compares the header's, and keeps the tensors'.
  void take_checksums(std::string_view header);

  MappedFile file_;
  std::string if_damaged_;  // what to do then
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;  // index into tensors_
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string, std::less<>> checksums_;  // by tensor
};

}  // namespace miles
