#include "model/source.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/weights_io.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

bool has_weights(const fs::path& directory) {
  return fs::exists(directory / "model.safetensors") ||
         fs::exists(directory / "model.safetensors.index.json");
}

bool is_model(const fs::path& directory) {
  return fs::exists(directory / "config.json");
}

/// The newest of the checkpoints (rl/checkpoint.h) in a --save directory; empty when it is none.
fs::path newest_checkpoint(const fs::path& directory) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("iter_") && is_model(entry.path() / "hf"))
      newest = std::max(newest, entry.path());
  return newest;
}

/// "ORG/NAME", as the Hugging Face hub calls models.
bool is_hub_name(const std::string& given) {
  const size_t slash = given.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < given.size() && given[0] != '.' &&
         given[0] != '~' && given.find('/', slash + 1) == std::string::npos;
}

/// What to do about a model that is not there; empty when there is nothing to say.
std::string how_to_download(const std::string& given) {
  if (!is_hub_name(given)) return "";
  const std::string name = given.substr(given.find('/') + 1);
  return fmt::format(
      "; models are read from local directories and never downloaded: if this is one of the "
      "Hugging Face hub, run \"hf download {} --local-dir {}\" (pip install huggingface_hub) and "
      "pass {}",
      given, name, name);
}

/// The directory with the model: `given`, or its hf/ when it is one of our checkpoints.
fs::path model_directory(const std::string& given, const std::string& flag) {
  const fs::path path = given;
  if (!fs::is_directory(path))
    fail(ErrorCode::data, "{} {}: no such directory{}", flag, given, how_to_download(given));
  if (is_model(path)) return path;
  if (is_model(path / "hf")) return path / "hf";
  if (const fs::path newest = newest_checkpoint(path); !newest.empty())
    fail(ErrorCode::data,
         "{} {}: the directory holds checkpoints; pass one of them: the newest is {}", flag, given,
         newest.string());
  return path;  // what is missing there is said by who reads it
}

}  // namespace

ModelSource ModelSource::resolve(const ModelOptions& options) {
  ModelSource source;
  source.options_ = options;
  std::string name = options.model;
  if (options.model.empty() && options.hf_checkpoint.empty())
    fail(ErrorCode::flags,
         "no model: pass --hf-checkpoint DIR (a Hugging Face directory), or --model with a preset "
         "({}) or a directory",
         fmt::join(preset_names(), ", "));
  if (options.init_random && !options.hf_checkpoint.empty())
    fail(ErrorCode::flags,
         "--init-random and --hf-checkpoint both say where the weights come from; pass one of them "
         "(for random weights in the shape of a directory: --model DIR --init-random)");
  if (!options.hf_checkpoint.empty()) {
    source.weights_ = model_directory(options.hf_checkpoint, options.hf_checkpoint_flag);
  }
  if (options.model.empty()) {
    name = options.hf_checkpoint;
    source.architecture_ = source.weights_;
    source.config_ = read_hf_config(*source.weights_);
  } else if (const auto preset = find_preset(options.model)) {
    source.config_ = *preset;
    if (!source.weights_ && !options.init_random)
      fail(ErrorCode::flags,
           "--model {} names an architecture, not weights; pass --hf-checkpoint DIR for its "
           "weights, or --init-random",
           options.model);
  } else if (fs::is_directory(options.model)) {
    source.architecture_ = model_directory(options.model, "--model");
    source.config_ = read_hf_config(*source.architecture_);
    if (!source.weights_ && !options.init_random) {
      if (!has_weights(*source.architecture_))
        fail(ErrorCode::data,
             "--model {}: the directory holds no model.safetensors; pass --hf-checkpoint DIR for "
             "weights, or --init-random",
             options.model);
      source.weights_ = source.architecture_;
    }
  } else {
    fail(ErrorCode::flags, "--model {}: neither a preset ({}) nor a directory{}", options.model,
         fmt::join(preset_names(), ", "), how_to_download(options.model));
  }
  if (options.dtype == DTypeChoice::float32) source.config_.dtype = DType::f32;
  if (options.dtype == DTypeChoice::bfloat16) source.config_.dtype = DType::bf16;
  if (!source.tokenizer_directory()) {
    if (!options.init_random)
      fail(ErrorCode::data, "{}: no tokenizer.json; pass --tokenizer DIR", name);
    // Bytes end at their own token, whatever the preset's tokenizer would have used.
    source.config_.bos_token_id = 256;
    source.config_.eos_token_ids = {257};
  }
  std::string weights = ", random weights";
  if (source.weights_)  // in its own directory, unless said
    weights = *source.weights_ == fs::path(name)
                  ? ""
                  : fmt::format(", weights of {}", source.weights_->string());
  source.description_ = fmt::format("{}{}, {}", name, weights, name_of(source.config_.dtype));
  return source;
}

void ModelSource::fill(const ParamLayout& layout, const Tensor& flat) const {
  if (weights_)
    load_weights(*weights_, config_, layout, flat);
  else
    init_random_weights(config_, layout, options_.seed, flat);
}

std::optional<fs::path> ModelSource::tokenizer_directory() const {
  if (!options_.tokenizer.empty()) return options_.tokenizer;
  for (const auto& directory : {weights_, architecture_})
    if (directory && fs::exists(*directory / "tokenizer.json")) return directory;
  return std::nullopt;
}

Tokenizer ModelSource::load_tokenizer() const {
  const auto directory = tokenizer_directory();
  Tokenizer tokenizer = directory ? Tokenizer::load(*directory) : Tokenizer::bytes();
  if (tokenizer.vocab_size() > config_.vocab_size)
    fail(ErrorCode::data,
         "{}: the tokenizer has ids up to {}, but the model's vocabulary has {} entries; pass the "
         "model's own --tokenizer DIR",
         directory ? directory->string() : "byte tokenizer", tokenizer.vocab_size() - 1,
         config_.vocab_size);
  return tokenizer;
}

}  // namespace miles
