#include "hub/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "hub/checksum.h"
#include "hub/json_file.h"
#include "hub/safetensors_checksums.h"

namespace miles {
namespace {

constexpr int64_t kLengthBytes = 8;
// The format's own limit: a longer header is an attack or damage, never a model.
constexpr int64_t kMostHeaderBytes = 100'000'000;

struct FileType {
  std::string_view name;
  int64_t bytes;               // per element
  std::optional<DType> dtype;  // ours, where we have it
};
// Types that we have no use for are known all the same, so that a file may hold them beside
// weights.
constexpr std::array<FileType, 15> kFileTypes = {{
    {"F32", 4, DType::f32},
    {"BF16", 2, DType::bf16},
    {"F16", 2, DType::f16},
    {"I32", 4, DType::i32},
    {"I64", 8, DType::i64},
    {"U16", 2, DType::u16},
    {"U8", 1, DType::u8},
    {"F64", 8, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
}};

const FileType* find_type(std::string_view name) {
  const auto found = std::find_if(kFileTypes.begin(), kFileTypes.end(),
                                  [&](const FileType& type) { return type.name == name; });
  return found == kFileTypes.end() ? nullptr : &*found;
}

/// The header's text, once its length is known to lie within the file.
std::string_view header_of(const MappedFile& file, std::string_view if_cut) {
  const std::span<const std::byte> bytes = file.bytes();
  const std::string path = file.path().string();
  if (bytes.size() < kLengthBytes)
    fail(ErrorCode::data,
         "{}: {} bytes long, but a safetensors file starts with 8 bytes of length; "
         "it was cut short: {}",
         path, bytes.size(), if_cut);
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i)
    length |= static_cast<uint64_t>(bytes[static_cast<size_t>(i)]) << (8 * i);
  if (length > kMostHeaderBytes)
    fail(ErrorCode::data,
         "{}: byte 0: a header of {} bytes, at most {} are allowed; this is not a "
         "safetensors file, or it is damaged",
         path, length, kMostHeaderBytes);
  if (length > bytes.size() - kLengthBytes)
    fail(ErrorCode::data,
         "{}: byte 0: a header of {} bytes, but only {} follow; it was cut short: {}", path, length,
         bytes.size() - kLengthBytes, if_cut);
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<size_t>(length)};
}

/// A list of non-negative integers that an int64 holds, or nothing.
std::optional<std::vector<int64_t>> extents_of(const nlohmann::json* value) {
  if (value == nullptr || !value->is_array()) return std::nullopt;
  std::vector<int64_t> extents;
  for (const nlohmann::json& extent : *value) {
    if (!extent.is_number_integer()) return std::nullopt;
    // Unsigned values beyond int64 come out negative here, and are refused with the others.
    extents.push_back(extent.get<int64_t>());
    if (extents.back() < 0) return std::nullopt;
  }
  return extents;
}

/// Bytes of a tensor, or nothing where an int64 cannot hold them.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& extents, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t extent : extents)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

/// Reads one entry; `data` is the file's data section: its start and its size in bytes.
StoredTensor read_entry(const std::string& where, const std::string& name,
                        const nlohmann::json& entry, std::pair<int64_t, int64_t> data,
                        std::string_view if_cut) {
  if (!entry.is_object())
    fail(ErrorCode::data, "{}: tensor {}: expected an object in the header", where, name);
  const JsonFields fields(entry, fmt::format("{}: tensor {}", where, name));
  StoredTensor tensor{.name = name, .dtype = fields.text("dtype"), .extents = {}};
  const FileType* type = find_type(tensor.dtype);
  if (type == nullptr) fail(ErrorCode::data, "{}: unknown dtype {}", fields.where(), tensor.dtype);
  const auto extents = extents_of(fields.find("shape"));
  const auto offsets = extents_of(fields.find("data_offsets"));
  if (!extents) fail(ErrorCode::data, "{}: shape is not a list of sizes", fields.where());
  if (!offsets || offsets->size() != 2)
    fail(ErrorCode::data, "{}: data_offsets is not a pair of offsets", fields.where());
  tensor.extents = *extents;
  const int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end || end > data.second)
    fail(ErrorCode::data, "{}: data_offsets [{}, {}], but the file has {} bytes of data{}",
         fields.where(), begin, end, data.second,
         end > data.second ? fmt::format("; it was cut short: {}", if_cut) : "");
  const auto bytes = bytes_of(tensor.extents, type->bytes);
  if (bytes != end - begin)
    fail(ErrorCode::data, "{}: data_offsets [{}, {}] hold {} bytes, but {} takes {}",
         fields.where(), begin, end, end - begin, tensor.str(),
         bytes ? std::to_string(*bytes) : "more than 2^63");
  tensor.offset = data.first + begin;
  tensor.bytes = end - begin;
  return tensor;
}

std::map<std::string, std::string> read_metadata(const std::string& where,
                                                 const nlohmann::json& entry) {
  std::map<std::string, std::string> metadata;
  if (!entry.is_object())
    fail(ErrorCode::data, "{}: __metadata__ is not an object of strings", where);
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      fail(ErrorCode::data, "{}: __metadata__: {} is not a string", where, key);
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

/// `tensors` in the order of their bytes must cover [begin, end) without gap or overlap.
void check_coverage(const std::string& where, const std::vector<StoredTensor>& tensors,
                    int64_t begin, int64_t end) {
  int64_t covered = begin;
  const std::string* previous = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset < covered)
      fail(ErrorCode::data, "{}: tensors {} and {} overlap at byte {}", where, *previous,
           tensor.name, tensor.offset);
    if (tensor.offset > covered)
      fail(ErrorCode::data, "{}: bytes {} to {}, before tensor {}, belong to no tensor", where,
           covered, tensor.offset, tensor.name);
    covered = tensor.offset + tensor.bytes;
    previous = &tensor.name;
  }
  if (covered != end)
    fail(ErrorCode::data, "{}: the last {} bytes, from byte {}, belong to no tensor", where,
         end - covered, covered);
}

}  // namespace

std::string StoredTensor::str() const {
  return fmt::format("{} [{}]", dtype, fmt::join(extents, ", "));
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path, std::string_view if_damaged)
    : file_(std::move(path)), if_damaged_(if_damaged) {
  const std::string where = file_.path().string();
  const std::string_view text = header_of(file_, if_damaged);
  const nlohmann::json header = parse_json_object(text, where + ": header");
  const int64_t begin = kLengthBytes + static_cast<int64_t>(text.size());
  const auto end = static_cast<int64_t>(file_.bytes().size());
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__")
      metadata_ = read_metadata(where, entry);
    else
      tensors_.push_back(read_entry(where, name, entry, {begin, end - begin}, if_damaged));
  }
  take_checksums(std::string_view(reinterpret_cast<const char*>(file_.bytes().data()),
                                  static_cast<size_t>(begin)));
  // An empty tensor shares its offset with its successor; it comes first.
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  check_coverage(where, tensors_, begin, end);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Tensor SafetensorsFile::view(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) fail(ErrorCode::data, "{}: has no tensor {}", path().string(), name);
  const std::optional<DType> dtype = find_type(tensor->dtype)->dtype;
  if (!dtype)
    fail(ErrorCode::data,
         "{}: tensor {}: {} cannot be used as weights; convert the model to F32, BF16 "
         "or F16",
         path().string(), name, tensor->dtype);
  const std::vector<int64_t>& n = tensor->extents;
  Shape shape;
  switch (n.size()) {
    case 0:
      break;
    case 1:
      shape = {n[0]};
      break;
    case 2:
      shape = {n[0], n[1]};
      break;
    case 3:
      shape = {n[0], n[1], n[2]};
      break;
    case 4:
      shape = {n[0], n[1], n[2], n[3]};
      break;
    default:
      fail(ErrorCode::data, "{}: tensor {}: {} has {} extents, at most {} are allowed",
           path().string(), name, tensor->str(), n.size(), Shape::kMaxRank);
  }
  const std::byte* data = file_.bytes().data() + tensor->offset;
  return {const_cast<std::byte*>(data), *dtype, shape};  // a Tensor cannot say read-only
}

void SafetensorsFile::take_checksums(std::string_view header) {
  if (const auto said = metadata_.find(std::string(kHeaderChecksumKey)); said != metadata_.end()) {
    if (const std::string is = header_checksum(std::string(header)); is != said->second)
      fail(ErrorCode::data,
           "{}: the header is damaged: its checksum is {}, and was {} when it was written: {}",
           path().string(), is, said->second, if_damaged_);
    metadata_.erase(said);
  }
  for (auto entry = metadata_.begin(); entry != metadata_.end();) {
    const auto next = std::next(entry);
    if (entry->first.starts_with(kTensorChecksumPrefix)) {
      checksums_.emplace(entry->first.substr(kTensorChecksumPrefix.size()), entry->second);
      metadata_.erase(entry);
    }
    entry = next;
  }
}

void SafetensorsFile::check(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  const auto said = checksums_.find(name);
  if (tensor == nullptr || said == checksums_.end()) return;
  Checksum checksum;
  checksum.add(file_.bytes().subspan(static_cast<size_t>(tensor->offset),
                                     static_cast<size_t>(tensor->bytes)));
  if (checksum.hex() != said->second)
    fail(ErrorCode::data,
         "{}: tensor {} is damaged: its checksum is {}, and was {} when it was written: {}",
         path().string(), name, checksum.hex(), said->second, if_damaged_);
}

void SafetensorsFile::drop_pages(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) file_.drop_pages(tensor->offset, tensor->bytes);
}

}  // namespace miles
