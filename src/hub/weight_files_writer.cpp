#include "hub/weight_files_writer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "hub/weight_file_names.h"

namespace miles {

WeightFilesWriter::WeightFilesWriter(std::filesystem::path dir,
                                     std::vector<TensorDeclaration> tensors, int64_t shard_bytes)
    : dir_(std::move(dir)) {
  int64_t bytes = 0;  // of the shard being filled
  for (TensorDeclaration& tensor : tensors) {
    if (shards_.empty() || (bytes > 0 && bytes + tensor.bytes() > shard_bytes)) {
      shards_.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shard_of_.emplace(tensor.name, shards_.size() - 1);
    shards_.back().tensors.push_back(std::move(tensor));
  }
  MILES_CHECK(!shards_.empty(), "{}: no tensors", dir_.string());
  for (size_t i = 0; i < shards_.size(); ++i)
    shards_[i].file = shards_.size() == 1
                          ? kSingleWeightFile
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  // Qualified: an unqualified call finds the standard library's too.
  miles::make_directories(dir_);
  open_next();
}

void WeightFilesWriter::open_next() {
  const Shard& shard = shards_[next_++];
  writer_ = std::make_unique<SafetensorsWriter>(dir_ / shard.file, shard.tensors);
}

void WeightFilesWriter::write(const std::string& name, const Tensor& piece) {
  const auto shard = shard_of_.find(name);
  MILES_CHECK(shard != shard_of_.end(), "{}: {} was not declared", dir_.string(), name);
  if (shard->second == next_) {
    writer_->finish();
    open_next();
  }
  writer_->write(name, piece);
}

void WeightFilesWriter::finish() {
  MILES_CHECK(next_ == shards_.size(), "{}: {} of {} files written", dir_.string(), next_,
              shards_.size());
  writer_->finish();
  const bool sharded = shards_.size() > 1;
  if (sharded) {
    nlohmann::ordered_json index;
    int64_t bytes = 0;
    for (const Shard& shard : shards_)
      for (const TensorDeclaration& tensor : shard.tensors) bytes += tensor.bytes();
    index["metadata"]["total_size"] = bytes;
    for (const auto& [tensor, shard] : shard_of_) index["weight_map"][tensor] = shards_[shard].file;
    write_file_atomically(dir_ / kWeightIndexFile, index.dump(2) + "\n");
  }
  std::error_code error;
  std::filesystem::remove(dir_ / (sharded ? kSingleWeightFile : kWeightIndexFile), error);
  if (error)
    fail(ErrorCode::data, "{}: cannot remove the older weights: {}", dir_.string(),
         error.message());
}

}  // namespace miles
