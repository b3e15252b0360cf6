// Weights between a Hugging Face directory and the flat parameter vector (model/layout.h), and
// random ones. `flat` is f32 or bf16 [layout.elements()], in host memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "hub/safetensors_writer.h"
#include "hub/weight_files_writer.h"
#include "model/config.h"
#include "model/layout.h"
#include "tensor/tensor.h"

namespace miles {

/// Fills `flat`; padding becomes 0. Stored F32, BF16 and F16 are converted, rounding to nearest
/// even. A tied head stays tied: a stored lm_head.weight is ignored, with a warning where it
/// differs from the embedding. Tensors that the model has no use for are named in one warning.
/// Throws Error{data} before anything is read when a tensor is missing or of another shape.
void load_weights(const std::filesystem::path& dir, const ModelConfig& config,
                  const ParamLayout& layout, const Tensor& flat);

/// Matrices: normal(0, config.initializer_range), a pure function of (seed, parameter's index,
/// element); norms: 1; padding: 0.
void init_random_weights(const ModelConfig& config, const ParamLayout& layout, uint64_t seed,
                         const Tensor& flat);

/// Brings elements [first, first + count) of flat weights to the host, where they stay until the
/// next call; `count` is at most kReadElements.
using WeightReader = std::function<Tensor(int64_t first, int64_t count)>;
inline constexpr int64_t kReadElements = int64_t{16} << 20;

/// Writes the weights in flat's dtype, as one file or in shards. `dir` is made where it is not
/// there, and should hold no other weights. Throws Error{data}.
void save_hf_weights(const std::filesystem::path& dir, const ParamLayout& layout,
                     const Tensor& flat, int64_t shard_bytes = WeightFilesWriter::kShardBytes);

/// The same, with config.json (its dtype is flat's) and generation_config.json: a directory that
/// transformers loads, but for the tokenizer's files. Throws Error{data}.
void save_hf_model(const std::filesystem::path& dir, const ModelConfig& config,
                   const ParamLayout& layout, const Tensor& flat);
/// The same of weights that may lie elsewhere than on the host.
void save_hf_model(const std::filesystem::path& dir, const ModelConfig& config,
                   const ParamLayout& layout, const WeightReader& read);

/// What save_hf_weights declares, for a caller that streams the weights from elsewhere.
std::vector<TensorDeclaration> declare_weights(const ParamLayout& layout, DType dtype);

/// Sets the elements that belong to no parameter to 0.
void zero_padding(const ParamLayout& layout, const Tensor& flat);

/// A parameter's view within `flat`.
Tensor param_view(const ParamSpec& param, const Tensor& flat);

}  // namespace miles
