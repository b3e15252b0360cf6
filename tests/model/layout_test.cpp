#include "model/layout.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

/// Small and awkward: no extent is a multiple of the alignment.
ModelConfig odd_config(bool qk_norm, bool tied) {
  return {.model_type = qk_norm ? "qwen3" : "llama",
          .vocab_size = 37,
          .hidden_size = 10,
          .intermediate_size = 7,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 6,
          .max_position_embeddings = 32,
          .qk_norm = qk_norm,
          .tie_word_embeddings = tied,
          .eos_token_ids = {}};
}

const ParamSpec& param(const ParamLayout& layout, const std::string& name) {
  const auto index = layout.find(name);
  EXPECT_TRUE(index.has_value()) << name;
  return layout.params()[static_cast<size_t>(index.value_or(0))];
}

TEST(ParamLayout, NamesAndShapesAreHuggingFacesInFlatOrder) {
  const ParamLayout layout(odd_config(true, false));
  ASSERT_EQ(layout.params().size(), 1U + 3 * 11 + 2);
  const std::pair<const char*, Shape> layer[] = {
      {"input_layernorm", {10}},      {"self_attn.q_proj", {24, 10}},
      {"self_attn.k_proj", {12, 10}}, {"self_attn.v_proj", {12, 10}},
      {"self_attn.q_norm", {6}},      {"self_attn.k_norm", {6}},
      {"self_attn.o_proj", {10, 24}}, {"post_attention_layernorm", {10}},
      {"mlp.gate_proj", {7, 10}},     {"mlp.up_proj", {7, 10}},
      {"mlp.down_proj", {10, 7}},
  };
  EXPECT_EQ(layout.params()[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(layout.params()[0].shape, (Shape{37, 10}));
  for (size_t i = 0; i < std::size(layer); ++i) {
    const ParamSpec& found = layout.params()[1 + 11 + i];  // of layer 1
    EXPECT_EQ(found.name, fmt::format("model.layers.1.{}.weight", layer[i].first));
    EXPECT_EQ(found.shape, layer[i].second) << found.name;
  }
  EXPECT_EQ(layout.params()[34].name, "model.norm.weight");
  EXPECT_EQ(layout.params()[35].name, "lm_head.weight");
}

TEST(ParamLayout, GroupsTileTheVectorAndHoldTheirParameters) {
  for (const bool qk_norm : {false, true}) {
    const ParamLayout layout(odd_config(qk_norm, true));
    std::vector<Group> groups = {layout.embed()};
    for (int64_t i = 0; i < layout.layers(); ++i) groups.push_back(layout.layer(i));
    groups.push_back(layout.head());
    int64_t elements = 0, params = 0, end = 0;
    for (const Group& group : groups) {
      EXPECT_EQ(group.offset, elements);
      EXPECT_EQ(group.offset % ParamLayout::kAlignment, 0);
      EXPECT_EQ(group.first_param, params);
      for (int64_t i = 0; i < group.param_count; ++i) {
        const ParamSpec& one = layout.params()[static_cast<size_t>(params + i)];
        EXPECT_GE(one.offset, end) << one.name;  // none overlaps the one before
        end = one.offset + one.elements();
        EXPECT_GE(one.offset, group.offset);
        EXPECT_LE(end, group.offset + group.elements);
      }
      elements += group.elements;
      params += group.param_count;
    }
    EXPECT_EQ(elements, layout.elements());
    EXPECT_EQ(params, std::ssize(layout.params()));
  }
}

TEST(ParamLayout, EveryLayerHasTheSameInnerLayout) {
  const ParamLayout layout(odd_config(true, true));
  const Group& first = layout.layer(0);
  for (int64_t i = 1; i < layout.layers(); ++i) {
    const Group& other = layout.layer(i);
    EXPECT_EQ(other.elements, first.elements);
    for (int64_t j = 0; j < first.param_count; ++j)
      EXPECT_EQ(layout.params()[static_cast<size_t>(other.first_param + j)].offset - other.offset,
                layout.params()[static_cast<size_t>(first.first_param + j)].offset - first.offset);
  }
}

TEST(ParamLayout, FusedMatricesAreAdjacentAndTheRestIsAligned) {
  const ParamLayout layout(odd_config(true, true));
  const std::string layer = "model.layers.2.";
  const auto at = [&](const char* name) { return param(layout, layer + name + ".weight").offset; };
  EXPECT_EQ(at("self_attn.k_proj"), at("self_attn.q_proj") + 24 * 10);
  EXPECT_EQ(at("self_attn.v_proj"), at("self_attn.k_proj") + 12 * 10);
  EXPECT_EQ(at("mlp.up_proj"), at("mlp.gate_proj") + 7 * 10);
  for (const ParamSpec& one : layout.params()) {
    const bool follows = one.name.find("k_proj") != std::string::npos ||
                         one.name.find("v_proj") != std::string::npos ||
                         one.name.find("up_proj") != std::string::npos;
    if (!follows) {
      EXPECT_EQ(one.offset % ParamLayout::kAlignment, 0) << one.name;
    }
  }
}

TEST(ParamLayout, OffsetsPointAtTheParameters) {
  const ParamLayout layout(odd_config(true, false));
  const LayerOffsets& offsets = layout.layer_offsets();
  const int64_t base = layout.layer(2).offset;
  const auto at = [&](const char* name) {
    return param(layout, fmt::format("model.layers.2.{}.weight", name)).offset - base;
  };
  EXPECT_EQ(offsets.input_norm, at("input_layernorm"));
  EXPECT_EQ(offsets.qkv, at("self_attn.q_proj"));
  EXPECT_EQ(offsets.q_norm, at("self_attn.q_norm"));
  EXPECT_EQ(offsets.k_norm, at("self_attn.k_norm"));
  EXPECT_EQ(offsets.o, at("self_attn.o_proj"));
  EXPECT_EQ(offsets.post_norm, at("post_attention_layernorm"));
  EXPECT_EQ(offsets.gate_up, at("mlp.gate_proj"));
  EXPECT_EQ(offsets.down, at("mlp.down_proj"));
  EXPECT_EQ(layout.head_offsets().norm, 0);
  EXPECT_EQ(layout.head().offset + layout.head_offsets().lm_head,
            param(layout, "lm_head.weight").offset);
}

TEST(ParamLayout, ATiedHeadAndAbsentNormsHaveNoPlace) {
  const ParamLayout layout(odd_config(false, true));
  EXPECT_EQ(layout.find("lm_head.weight"), std::nullopt);
  EXPECT_EQ(layout.head_offsets().lm_head, -1);
  EXPECT_EQ(layout.layer_offsets().q_norm, -1);
  EXPECT_EQ(layout.layer_offsets().k_norm, -1);
  EXPECT_EQ(layout.find("model.layers.0.self_attn.q_norm.weight"), std::nullopt);
  EXPECT_EQ(layout.parameters(), 37 * 10 + 3 * (2 * 10 + 48 * 10 + 24 * 10 + 3 * 7 * 10) + 10);
  EXPECT_GT(layout.elements(), layout.parameters());
}

TEST(ParamLayout, MatricesDecayAndNormsDoNot) {
  const ParamLayout layout(odd_config(true, false));
  for (const ParamSpec& one : layout.params())
    EXPECT_EQ(is_decayed(one), one.name.find("norm") == std::string::npos) << one.name;
}

}  // namespace
}  // namespace miles
