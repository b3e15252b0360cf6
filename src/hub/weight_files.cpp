#include "hub/weight_files.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "hub/convert.h"
#include "hub/json_file.h"
#include "hub/weight_file_names.h"

namespace miles {
namespace {

/// A shard is a file of the directory itself: an index from elsewhere must not reach beyond it.
std::string shard_name(const std::string& where, const std::string& tensor,
                       const nlohmann::json& value) {
  if (!value.is_string())
    fail(ErrorCode::data, "{}: weight_map: the shard of {} is not a string", where, tensor);
  auto name = value.get<std::string>();
  if (name.empty() || name == ".." ||
      name.find_first_of(std::string("/\0", 2)) != std::string::npos)
    fail(ErrorCode::data,
         "{}: weight_map: the shard of {} is '{}', expected the name of a file beside "
         "the index",
         where, tensor, name);
  return name;
}

}  // namespace

WeightFiles::WeightFiles(const std::filesystem::path& dir) : dir_(dir) {
  if (!std::filesystem::is_directory(dir))
    fail(ErrorCode::data, "{}: no such directory; give one in Hugging Face's layout", dir.string());
  const std::filesystem::path single = dir / kSingleWeightFile, index = dir / kWeightIndexFile;
  if (std::filesystem::exists(single)) {
    open_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const StoredTensor& tensor : open_[0]->tensors())
      files_.emplace(tensor.name, open_[0].get());
  } else if (std::filesystem::exists(index)) {
    open_shards(index);
  } else {
    fail(ErrorCode::data, "{}: has neither {} nor {}; only safetensors weights are read",
         dir.string(), kSingleWeightFile, kWeightIndexFile);
  }
  for (const auto& [name, file] : files_) names_.push_back(name);
}

void WeightFiles::open_shards(const std::filesystem::path& index) {
  const std::string where = index.string();
  const nlohmann::json content = read_json_object(index);
  const nlohmann::json* weight_map = JsonFields(content, where).find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty())
    fail(ErrorCode::data, "{}: weight_map is missing or empty", where);
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [tensor, value] : weight_map->items()) {
    const std::string name = shard_name(where, tensor, value);
    const SafetensorsFile*& shard = shards[name];
    if (shard == nullptr) {
      if (!std::filesystem::exists(dir_ / name))
        fail(ErrorCode::data,
             "{}: weight_map names the shard {} (for {}), which is not there; fetch it", where,
             name, tensor);
      open_.push_back(std::make_unique<SafetensorsFile>(dir_ / name));
      shard = open_.back().get();
    }
    if (shard->find(tensor) == nullptr)
      fail(ErrorCode::data, "{}: weight_map says that {} holds {}, but it does not", where, name,
           tensor);
    files_.emplace(tensor, shard);
  }
}

const SafetensorsFile& WeightFiles::file_of(std::string_view name) const {
  const auto found = files_.find(name);
  MILES_CHECK(found != files_.end(), "{}: no tensor {}", dir_.string(), name);
  return *found->second;
}

void WeightFiles::check_shape(const std::string& name, const Shape& expected) const {
  if (!contains(name)) fail(ErrorCode::data, "{}: has no tensor {}", dir_.string(), name);
  const StoredTensor& stored = *file_of(name).find(name);
  std::vector<int64_t> extents;
  for (int i = 0; i < expected.rank(); ++i) extents.push_back(expected[i]);
  if (stored.extents != extents)
    fail(ErrorCode::data,
         "{}: tensor {}: found shape [{}], expected {}; the weights and config.json are "
         "not of the same model",
         file_of(name).path().string(), name, fmt::join(stored.extents, ", "), expected.str());
}

void WeightFiles::read(const std::string& name, const Tensor& to) const {
  check_shape(name, to.shape());
  const SafetensorsFile& file = file_of(name);
  const Tensor from = file.view(name);
  if (from.dtype() != DType::f32 && from.dtype() != DType::bf16 && from.dtype() != DType::f16)
    fail(ErrorCode::data,
         "{}: tensor {}: {} cannot be used as weights; convert the model to F32, BF16 "
         "or F16",
         file.path().string(), name, file.find(name)->dtype);
  file.check(name);
  convert(from, to);
  file.drop_pages(name);
}

}  // namespace miles
