#include "hub/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "hub/safetensors_checksums.h"

namespace miles {
namespace {

std::string_view file_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u16:
      return "U16";
    case DType::u8:
      return "U8";
  }
  return "?";
}

nlohmann::ordered_json extents_of(const Shape& shape) {
  auto extents = nlohmann::ordered_json::array();
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape[i]);
  return extents;
}

/// The length and the header, padded with blanks so that the data starts at a multiple of 8 bytes.
std::string make_header(const std::vector<TensorDeclaration>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  const auto leave_room = [&](std::string_view key) {
    header["__metadata__"][std::string(key)] = std::string(Checksum::kDigits, '0');
  };
  leave_room(kHeaderChecksumKey);
  for (const TensorDeclaration& tensor : tensors) leave_room(checksum_key(tensor.name));
  int64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    MILES_CHECK(!header.contains(tensor.name), "{} is declared twice", tensor.name);
    MILES_CHECK(offset % size_of(tensor.dtype) == 0, "{} would be misaligned", tensor.name);
    header[tensor.name] = {{"dtype", file_type(tensor.dtype)},
                           {"shape", extents_of(tensor.shape)},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
  return length + json;
}

int64_t total_bytes(const std::vector<TensorDeclaration>& tensors) {
  int64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)),
      header_(make_header(tensors_, metadata)),
      file_(std::move(path), static_cast<int64_t>(header_.size()) + total_bytes(tensors_)) {
  file_.append(std::as_bytes(std::span(header_)));
  skip_complete_tensors();
}

void SafetensorsWriter::skip_complete_tensors() {
  while (current_ < tensors_.size() && done_bytes_ == tensors_[current_].bytes()) {
    put_digits(checksum_key(tensors_[current_].name), checksum_.hex());
    checksum_ = Checksum();
    ++current_;
    done_bytes_ = 0;
  }
}

void SafetensorsWriter::put_digits(std::string_view key, const std::string& digits) {
  const size_t at = digits_at(header_, key);
  MILES_CHECK(at != std::string::npos, "{}: no room for {}", file_.path().string(), key);
  header_.replace(at, digits.size(), digits);
}

void SafetensorsWriter::write(const std::string& name, const Tensor& piece) {
  const std::string path = file_.path().string();
  if (piece.elements() == 0) return;
  MILES_CHECK(current_ < tensors_.size(), "{}: {} after the last tensor", path, name);
  const TensorDeclaration& tensor = tensors_[current_];
  MILES_CHECK(name == tensor.name && piece.dtype() == tensor.dtype, "{}: {} {} instead of {} {}",
              path, name_of(piece.dtype()), name, name_of(tensor.dtype), tensor.name);
  MILES_CHECK(done_bytes_ + piece.bytes() <= tensor.bytes(), "{}: {}: {} bytes of {}", path, name,
              done_bytes_ + piece.bytes(), tensor.bytes());
  const std::span bytes(static_cast<const std::byte*>(piece.data()),
                        static_cast<size_t>(piece.bytes()));
  checksum_.add(bytes);
  file_.append(bytes);
  done_bytes_ += piece.bytes();
  skip_complete_tensors();
}

void SafetensorsWriter::finish() {
  MILES_CHECK(current_ == tensors_.size(), "{}: finished before {}", file_.path().string(),
              tensors_[current_].name);
  put_digits(kHeaderChecksumKey, header_checksum(header_));
  file_.replace(0, std::as_bytes(std::span(header_)));
  file_.commit();
}

}  // namespace miles
