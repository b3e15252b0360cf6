// The weight layout table: the only place that knows the parameters' names, shapes and order. All
// of a model's parameters lie in one flat vector, so that a block's weights, gradients or moments
// are one contiguous run that a single copy moves.
//
//   embed │ layer 0 │ … │ layer L-1 │ head
//   layer: input_norm, q, k, v, [q_norm, k_norm,] o, post_norm, gate, up, down
//   head:  final norm, lm_head unless it is tied to the embedding
//
// q, k and v are adjacent (one [qkv_size, H] matrix), so are gate and up (one [2F, H]); everything
// else starts at a multiple of kAlignment. The elements in between are padding: always 0, nobody's
// parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace miles {

/// One parameter tensor, under Hugging Face's name.
struct ParamSpec {
  std::string name;    // "model.layers.3.self_attn.q_proj.weight"
  Shape shape;         // [out, in] for matrices, [H] or [D] for norms
  int64_t offset = 0;  // elements from the start of the flat vector

  int64_t elements() const { return shape.elements(); }
};

/// A contiguous run of the flat vector. The groups tile it: padding belongs to the group before it.
struct Group {
  int64_t offset = 0;       // elements from the start of the flat vector; a multiple of kAlignment
  int64_t elements = 0;     // with padding; a multiple of kAlignment
  int64_t first_param = 0;  // index into params()
  int64_t param_count = 0;
};

/// Where a layer's matrices and norms start: elements from its group's start, the same in every
/// layer.
struct LayerOffsets {
  int64_t input_norm = 0;  // [H]
  int64_t qkv = 0;         // [qkv_size, H]: q's rows, then k's, then v's
  int64_t q_norm = -1;     // [D]; -1 without qk_norm
  int64_t k_norm = -1;     // [D]; -1 without qk_norm
  int64_t o = 0;           // [H, q_size]
  int64_t post_norm = 0;   // [H]
  int64_t gate_up = 0;     // [2F, H]: gate's rows, then up's
  int64_t down = 0;        // [H, F]
};

/// The same for the head's group.
struct HeadOffsets {
  int64_t norm = 0;      // [H]
  int64_t lm_head = -1;  // [V, H]; -1 when it is the embedding
};

class ParamLayout {
 public:
  static constexpr int64_t kAlignment = 64;  // elements: 128 bytes of bf16, a cache line pair

  /// `config` has passed check_config.
  explicit ParamLayout(const ModelConfig& config);

  /// In the order of the flat vector.
  const std::vector<ParamSpec>& params() const { return params_; }
  /// Length of the flat vector, with padding.
  int64_t elements() const { return elements_; }
  /// Number of parameters, without padding: what people call the model's size.
  int64_t parameters() const;

  const Group& embed() const { return groups_.front(); }
  const Group& layer(int64_t i) const;
  const Group& head() const { return groups_.back(); }
  int64_t layers() const { return static_cast<int64_t>(groups_.size()) - 2; }

  const LayerOffsets& layer_offsets() const { return layer_offsets_; }
  const HeadOffsets& head_offsets() const { return head_offsets_; }

  /// Index into params(), or nothing.
  std::optional<int64_t> find(std::string_view name) const;

 private:
  enum class Start { aligned, adjacent };
  int64_t add(std::string name, const Shape& shape, Start start = Start::aligned);
  void add_layer(const ModelConfig& config, int64_t index);
  void open_group();
  void close_group();

  std::vector<ParamSpec> params_;
  std::vector<Group> groups_;  // embed, layers, head
  LayerOffsets layer_offsets_;
  HeadOffsets head_offsets_;
  int64_t elements_ = 0;
};

/// Whether weight decay applies: to matrices, not to norms.
bool is_decayed(const ParamSpec& param);

}  // namespace miles
