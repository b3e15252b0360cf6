// The trainer's state on disk: the flat weights, and per chunk the low halves and the moments, so
// that no placement needs more than one chunk at a time to write or read it.
#include <algorithm>
#include <map>

#include "actor/actor_model.h"
#include "hub/safetensors.h"
#include "hub/safetensors_writer.h"
#include "model/weights_io.h"

namespace miles {
namespace {

constexpr const char* kFormat = "miles.trainer.1";

std::filesystem::path state_path(const std::filesystem::path& directory) {
  return directory / "trainer.safetensors";
}

/// A chunk's tensors at `base`, by name.
std::vector<std::pair<std::string, Tensor>> chunk_tensors(size_t chunk, int64_t elements,
                                                          DType dtype, std::byte* base) {
  const ChunkState at = chunk_state(elements, dtype);
  std::vector<std::pair<std::string, Tensor>> tensors = {
      {fmt::format("optimizer.{}.m", chunk), Tensor(base + at.m, DType::f32, {elements})},
      {fmt::format("optimizer.{}.v", chunk), Tensor(base + at.v, DType::f32, {elements})}};
  if (dtype != DType::f32)
    tensors.emplace_back(fmt::format("optimizer.{}.low", chunk),
                         Tensor(base + at.low, DType::u16, {elements}));
  return tensors;
}

int64_t read_count(const SafetensorsFile& file, const std::string& key) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end())
    fail(ErrorCode::data, "{}: '{}' is missing from the metadata; this is not a trainer checkpoint",
         file.path().string(), key);
  try {
    return std::stoll(entry->second);
  } catch (const std::exception&) {
    fail(ErrorCode::data, "{}: '{}' is '{}', not a number", file.path().string(), key,
         entry->second);
  }
}

}  // namespace

Region ActorModel::commit_save_staging() {
  const int64_t elements = std::min(kReadElements, layout_.elements());
  Region staging(memory_, Place::host, "staging", elements * size_of(DType::f32));
  staging.commit();
  return staging;
}

void ActorModel::rehearse_save() {
  commit_save_staging();
}

void ActorModel::save_state(const std::filesystem::path& directory) {
  const Tensor weights = weights_at_rest();
  store_.optimizer().flush();
  // The format wants wide types first: moments, then weights, then low halves.
  std::vector<TensorDeclaration> declared;
  const auto declare = [&](DType type) {
    if (type == config_.dtype) declared.push_back({"weights", type, weights.shape()});
    for (size_t c = 0; c < store_.chunks().size(); ++c)
      for (const auto& [name, tensor] :
           chunk_tensors(c, store_.chunks()[c].elements, config_.dtype, nullptr))
        if (tensor.dtype() == type) declared.push_back({name, type, tensor.shape()});
  };
  for (const DType type : {DType::f32, DType::bf16, DType::u16}) declare(type);

  SafetensorsWriter writer(state_path(directory), declared,
                           {{"format", kFormat},
                            {"optimizer_steps", std::to_string(optimizer_.steps())},
                            {"skipped_steps", std::to_string(skipped_steps_)},
                            {"weight_version", std::to_string(weight_version_)}});
  const Region staging = commit_save_staging();
  const int64_t piece = std::min(kReadElements, weights.elements());
  const auto write = [&](const std::string& name, const Tensor& tensor) {
    for (int64_t done = 0; done < tensor.elements(); done += piece) {
      const Tensor part = tensor.rows(done, std::min(piece, tensor.elements() - done));
      const Tensor copy(staging.data(), part.dtype(), part.shape());
      compute_->copy(copy.data(), part.data(), part.bytes());
      compute_->synchronize();
      writer.write(name, copy);
    }
  };
  for (const TensorDeclaration& declaration : declared) {
    if (declaration.name == "weights") {
      write(declaration.name, weights);
      continue;
    }
    const size_t c = std::stoul(declaration.name.substr(declaration.name.find('.') + 1));
    for (const auto& [name, tensor] : chunk_tensors(c, store_.chunks()[c].elements, config_.dtype,
                                                    store_.state_at_rest(static_cast<int>(c))))
      if (name == declaration.name) write(name, tensor);
  }
  writer.finish();
}

void ActorModel::load_state(const std::filesystem::path& directory) {
  const SafetensorsFile file(state_path(directory), "go on from another checkpoint");
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat)
    fail(ErrorCode::data, "{}: not a trainer checkpoint of this version ('format' is not '{}')",
         file.path().string(), kFormat);
  std::vector<std::pair<std::string, Tensor>> tensors = {{"weights", store_.at_rest()}};
  for (size_t c = 0; c < store_.chunks().size(); ++c)
    for (auto& tensor : chunk_tensors(c, store_.chunks()[c].elements, config_.dtype,
                                      store_.state_at_rest(static_cast<int>(c))))
      tensors.push_back(std::move(tensor));
  // Names, types and shapes are checked before anything is overwritten; bytes as they come, for a
  // trainer that reads a damaged checkpoint does not go on.
  for (const auto& [name, to] : tensors) {
    const Tensor from = file.view(name);
    if (from.dtype() != to.dtype() || from.shape() != to.shape())
      fail(ErrorCode::data, "{}: {} is {} {}, but this model and --dtype need {} {}",
           file.path().string(), name, name_of(from.dtype()), from.shape().str(),
           name_of(to.dtype()), to.shape().str());
  }
  const int64_t steps = read_count(file, "optimizer_steps");
  const int64_t skipped = read_count(file, "skipped_steps");
  const int64_t version = read_count(file, "weight_version");

  forget_device_copies();
  for (const auto& [name, to] : tensors) {
    file.check(name);
    compute_->copy(to.data(), file.view(name).data(), to.bytes());
    compute_->synchronize();
    file.drop_pages(name);
  }
  optimizer_.set_steps(steps);
  skipped_steps_ = skipped;
  weight_version_ = version;
}

}  // namespace miles
