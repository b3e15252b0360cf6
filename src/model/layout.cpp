#include "model/layout.h"

#include <algorithm>
#include <utility>

namespace miles {
namespace {

int64_t align_up(int64_t offset) {
  return (offset + ParamLayout::kAlignment - 1) / ParamLayout::kAlignment * ParamLayout::kAlignment;
}

}  // namespace

ParamLayout::ParamLayout(const ModelConfig& config) {
  const Shape vocabulary = {config.vocab_size, config.hidden_size};
  open_group();
  add("model.embed_tokens.weight", vocabulary);
  close_group();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) add_layer(config, i);
  open_group();
  head_offsets_.norm = add("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) head_offsets_.lm_head = add("lm_head.weight", vocabulary);
  close_group();
}

void ParamLayout::add_layer(const ModelConfig& config, int64_t index) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const std::string layer = fmt::format("model.layers.{}.", index);
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  LayerOffsets at;
  open_group();
  at.input_norm = add(layer + "input_layernorm.weight", {hidden});
  at.qkv = add(attention + "q_proj.weight", {config.q_size(), hidden});
  add(attention + "k_proj.weight", {config.kv_size(), hidden}, Start::adjacent);
  add(attention + "v_proj.weight", {config.kv_size(), hidden}, Start::adjacent);
  if (config.qk_norm) {
    at.q_norm = add(attention + "q_norm.weight", {config.head_dim});
    at.k_norm = add(attention + "k_norm.weight", {config.head_dim});
  }
  at.o = add(attention + "o_proj.weight", {hidden, config.q_size()});
  at.post_norm = add(layer + "post_attention_layernorm.weight", {hidden});
  at.gate_up = add(mlp + "gate_proj.weight", {ffn, hidden});
  add(mlp + "up_proj.weight", {ffn, hidden}, Start::adjacent);
  at.down = add(mlp + "down_proj.weight", {hidden, ffn});
  close_group();
  layer_offsets_ = at;
}

void ParamLayout::open_group() {
  groups_.push_back(
      {.offset = elements_, .elements = 0, .first_param = std::ssize(params_), .param_count = 0});
}

void ParamLayout::close_group() {
  elements_ = align_up(elements_);
  Group& group = groups_.back();
  group.elements = elements_ - group.offset;
  group.param_count = std::ssize(params_) - group.first_param;
}

/// Appends a parameter; returns its offset from the start of the open group.
int64_t ParamLayout::add(std::string name, const Shape& shape, Start start) {
  const int64_t offset = start == Start::aligned ? align_up(elements_) : elements_;
  elements_ = offset + shape.elements();
  params_.push_back({.name = std::move(name), .shape = shape, .offset = offset});
  return offset - groups_.back().offset;
}

int64_t ParamLayout::parameters() const {
  int64_t count = 0;
  for (const ParamSpec& param : params_) count += param.elements();
  return count;
}

const Group& ParamLayout::layer(int64_t i) const {
  MILES_CHECK(i >= 0 && i < layers(), "layer {} of {}", i, layers());
  return groups_[static_cast<size_t>(i) + 1];
}

std::optional<int64_t> ParamLayout::find(std::string_view name) const {
  const auto found = std::find_if(params_.begin(), params_.end(),
                                  [&](const ParamSpec& param) { return param.name == name; });
  if (found == params_.end()) return std::nullopt;
  return found - params_.begin();
}

bool is_decayed(const ParamSpec& param) {
  return param.shape.rank() == 2;
}

}  // namespace miles
