#include "model/weights_io.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "hub/weight_files.h"
#include "model/hf_config.h"

namespace miles {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr size_t kMostNamed = 5;  // tensors that a message lists

/// "a, b, c and 7 more"
std::string list(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostNamed);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

void check_flat(const ParamLayout& layout, const Tensor& flat) {
  MILES_CHECK(flat.elements() == layout.elements(), "{} elements, the layout has {}",
              flat.elements(), layout.elements());
  MILES_CHECK(flat.dtype() == DType::f32 || flat.dtype() == DType::bf16, "weights in {}",
              name_of(flat.dtype()));
}

void check_complete(const WeightFiles& files, const std::filesystem::path& dir,
                    const ParamLayout& layout) {
  std::vector<std::string> missing;
  for (const ParamSpec& param : layout.params())
    if (!files.contains(param.name)) missing.push_back(param.name);
  if (missing.size() == 1 && missing[0] == kHead)
    fail(ErrorCode::data,
         "{}: has no tensor {}; if the model's head is its embedding, set "
         "tie_word_embeddings to true in config.json",
         dir.string(), kHead);
  if (!missing.empty())
    fail(ErrorCode::data,
         "{}: {} of {} tensors are missing: {}; fetch the model again, or check that "
         "config.json is of the same model",
         dir.string(), missing.size(), layout.params().size(), list(missing));
  for (const ParamSpec& param : layout.params()) files.check_shape(param.name, param.shape);
}

/// Compares two stored tensors bit by bit.
bool stored_equally(const WeightFiles& files, const char* a, const char* b) {
  const Tensor x = files.file_of(a).view(a), y = files.file_of(b).view(b);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<size_t>(x.bytes())) == 0;
}

/// The number of the block that a tensor belongs to; −1: none.
int64_t block_of(std::string_view name) {
  constexpr std::string_view kBlocks = "model.layers.";
  int64_t block = -1;
  if (name.starts_with(kBlocks))
    std::from_chars(name.data() + kBlocks.size(), name.data() + name.size(), block);
  return block;
}

/// Says what is in the files and will not be used. Throws Error{data} when it is a block.
void report_unused(const WeightFiles& files, const std::filesystem::path& dir,
                   const ModelConfig& config, const ParamLayout& layout) {
  std::vector<std::string> unused;
  for (const std::string& name : files.names()) {
    // Old exports hold the rotary frequencies, which follow from the config.
    if (layout.find(name) || name.ends_with("rotary_emb.inv_freq")) continue;
    if (block_of(name) >= config.num_hidden_layers)
      fail(ErrorCode::data,
           "{}: the weights have {}, but config.json says num_hidden_layers {}; fetch the model "
           "again, or mend config.json",
           dir.string(), name, config.num_hidden_layers);
    if (name != kHead || !config.tie_word_embeddings)
      unused.push_back(name);
    else if (!stored_equally(files, kHead, kEmbedding))
      log::warn("{}: {} differs from {} and is ignored: tie_word_embeddings is true", dir.string(),
                kHead, kEmbedding);
  }
  if (!unused.empty())
    log::warn("{}: {} tensors are not part of the model and are ignored: {}", dir.string(),
              unused.size(), list(unused));
}

}  // namespace

Tensor param_view(const ParamSpec& param, const Tensor& flat) {
  return flat.rows(param.offset, param.elements()).reshape(param.shape);
}

void zero_padding(const ParamLayout& layout, const Tensor& flat) {
  const auto zero = [&](int64_t first, int64_t last) {
    const Tensor gap = flat.rows(first, last - first);
    std::memset(gap.data(), 0, static_cast<size_t>(gap.bytes()));
  };
  int64_t end = 0;
  for (const ParamSpec& param : layout.params()) {
    zero(end, param.offset);
    end = param.offset + param.elements();
  }
  zero(end, layout.elements());
}

void load_weights(const std::filesystem::path& dir, const ModelConfig& config,
                  const ParamLayout& layout, const Tensor& flat) {
  check_flat(layout, flat);
  const WeightFiles files(dir);
  check_complete(files, dir, layout);
  report_unused(files, dir, config, layout);
  zero_padding(layout, flat);
  for (const ParamSpec& param : layout.params()) files.read(param.name, param_view(param, flat));
}

std::vector<TensorDeclaration> declare_weights(const ParamLayout& layout, DType dtype) {
  std::vector<TensorDeclaration> tensors;
  for (const ParamSpec& param : layout.params())
    tensors.push_back({.name = param.name, .dtype = dtype, .shape = param.shape});
  return tensors;
}

namespace {

struct Destination {
  const std::filesystem::path& dir;
  DType dtype;
  int64_t shard_bytes;
};

void write_weights(const Destination& to, const ParamLayout& layout, const WeightReader& read) {
  WeightFilesWriter writer(to.dir, declare_weights(layout, to.dtype), to.shard_bytes);
  for (const ParamSpec& param : layout.params())
    for (int64_t done = 0; done < param.elements(); done += kReadElements)
      writer.write(param.name,
                   read(param.offset + done, std::min(kReadElements, param.elements() - done)));
  writer.finish();
}

}  // namespace

void save_hf_weights(const std::filesystem::path& dir, const ParamLayout& layout,
                     const Tensor& flat, int64_t shard_bytes) {
  check_flat(layout, flat);
  write_weights({dir, flat.dtype(), shard_bytes}, layout,
                [&](int64_t first, int64_t count) { return flat.rows(first, count); });
}

void save_hf_model(const std::filesystem::path& dir, const ModelConfig& config,
                   const ParamLayout& layout, const WeightReader& read) {
  write_weights({dir, config.dtype, WeightFilesWriter::kShardBytes}, layout, read);
  write_file_atomically(dir / "generation_config.json", to_hf_generation_config_json(config));
  write_file_atomically(dir / "config.json", to_hf_config_json(config));
}

void save_hf_model(const std::filesystem::path& dir, const ModelConfig& config,
                   const ParamLayout& layout, const Tensor& flat) {
  check_flat(layout, flat);
  ModelConfig saved = config;
  saved.dtype = flat.dtype();
  save_hf_model(dir, saved, layout,
                [&](int64_t first, int64_t count) { return flat.rows(first, count); });
}

}  // namespace miles
