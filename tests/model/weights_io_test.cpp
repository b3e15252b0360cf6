#include "model/weights_io.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "base/log.h"
#include "hub/weight_files.h"
#include "model/hf_config.h"
#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;
using test::ScratchDir;

ModelConfig tiny_config(bool tied) {
  return {.model_type = "qwen3",
          .vocab_size = 37,
          .hidden_size = 10,
          .intermediate_size = 7,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 6,
          .max_position_embeddings = 32,
          .qk_norm = true,
          .tie_word_embeddings = tied,
          .eos_token_ids = {}};
}

/// A model with random weights, in memory.
template <class T>
struct Model {
  explicit Model(const ModelConfig& given, uint64_t seed = 1)
      : config(given), layout(given), values(static_cast<size_t>(layout.elements())) {
    std::memset(values.data(), 0xFF, values.size() * sizeof(T));  // padding must be overwritten
    init_random_weights(config, layout, seed, flat());
  }
  Tensor flat() { return Tensor::view(std::span(values), {layout.elements()}); }

  ModelConfig config;
  ParamLayout layout;
  std::vector<T> values;
};

template <class T>
std::vector<T> load(const std::filesystem::path& dir, const Model<float>& model) {
  std::vector<T> values(model.values.size());
  std::memset(values.data(), 0xFF, values.size() * sizeof(T));
  load_weights(dir, model.config, model.layout,
               Tensor::view(std::span(values), {model.layout.elements()}));
  return values;
}

/// Collects what is logged while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "capture", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

/// Writes the model's tensors but `without`, and `extra` ones.
void write_tensors(const std::filesystem::path& dir, Model<float>& model,
                   const std::string& without,
                   const std::vector<std::pair<TensorDeclaration, Tensor>>& extra) {
  std::vector<TensorDeclaration> tensors;
  for (const TensorDeclaration& one : declare_weights(model.layout, DType::f32))
    if (one.name != without) tensors.push_back(one);
  for (const auto& [one, data] : extra) tensors.push_back(one);
  WeightFilesWriter writer(dir, tensors);
  for (const ParamSpec& param : model.layout.params())
    if (param.name != without) writer.write(param.name, param_view(param, model.flat()));
  for (const auto& [one, data] : extra) writer.write(one.name, data);
  writer.finish();
}

TEST(WeightsIo, WhatIsSavedIsLoadedBitByBit) {
  for (const bool tied : {false, true}) {
    const ScratchDir dir;
    Model<float> model(tiny_config(tied));
    save_hf_model(dir / "whole", model.config, model.layout, model.flat());
    EXPECT_EQ(load<float>(dir / "whole", model), model.values);
    save_hf_weights(dir / "shards", model.layout, model.flat(), 1000);
    EXPECT_FALSE(std::filesystem::exists(dir / "shards" / "model.safetensors"));
    EXPECT_EQ(load<float>(dir / "shards", model), model.values);
    EXPECT_EQ(to_hf_config_json(read_hf_config(dir / "whole")), to_hf_config_json(model.config));
  }
}

TEST(WeightsIo, ASavedModelSaysTheTypeOfItsWeights) {
  const ScratchDir dir;
  Model<BFloat16> model(tiny_config(true));
  save_hf_model(dir.path(), model.config, model.layout, model.flat());
  EXPECT_EQ(read_hf_config(dir.path()).dtype, DType::bf16);
  EXPECT_EQ(WeightFiles(dir.path()).file_of("model.norm.weight").find("model.norm.weight")->dtype,
            "BF16");
}

TEST(WeightsIo, LoadingRoundsToTheTypeOfTheVector) {
  const ScratchDir dir;
  Model<float> model(tiny_config(false));
  save_hf_weights(dir.path(), model.layout, model.flat());
  const auto loaded = load<BFloat16>(dir.path(), model);
  for (size_t i = 0; i < loaded.size(); ++i)
    ASSERT_EQ(loaded[i].bits, to_bfloat16(model.values[i]).bits) << i;
}

TEST(WeightsIo, AMissingTensorIsNamed) {
  const ScratchDir dir;
  Model<float> model(tiny_config(false));
  write_tensors(dir.path(), model, "model.layers.1.self_attn.q_norm.weight", {});
  expect_parts(data_error([&] { load<float>(dir.path(), model); }),
               {dir.path().string(), "1 of 25 tensors", "model.layers.1.self_attn.q_norm.weight"});
}

TEST(WeightsIo, ABlockBeyondTheConfigsIsNoModelOfIt) {
  const ScratchDir dir;
  Model<float> model(tiny_config(false));
  std::vector<float> ones(16, 1);
  const TensorDeclaration norm{"model.layers.2.input_layernorm.weight", DType::f32, {16}};
  write_tensors(dir.path(), model, "", {{norm, Tensor(ones.data(), DType::f32, {16})}});
  expect_parts(data_error([&] { load<float>(dir.path(), model); }),
               {"model.layers.2.input_layernorm.weight", "num_hidden_layers 2"});
}

TEST(WeightsIo, AMissingHeadIsSaidToBeTiedPerhaps) {
  const ScratchDir dir;
  Model<float> model(tiny_config(false));
  write_tensors(dir.path(), model, "lm_head.weight", {});
  expect_parts(data_error([&] { load<float>(dir.path(), model); }),
               {"lm_head.weight", "tie_word_embeddings"});
}

TEST(WeightsIo, ManyMissingTensorsAreCountedAndFiveNamed) {
  const ScratchDir dir;
  Model<float> model(tiny_config(true));
  test::write_vectors(dir / "model.safetensors", {{"model.norm.weight", std::vector<float>(10)}});
  const std::string message = data_error([&] { load<float>(dir.path(), model); });
  expect_parts(message, {"23 of 24 tensors", "model.embed_tokens.weight", "and 18 more"});
}

TEST(WeightsIo, AnotherShapeIsRefusedBeforeAnythingIsRead) {
  const ScratchDir dir;
  Model<float> model(tiny_config(true));
  save_hf_weights(dir.path(), model.layout, model.flat());
  ModelConfig wider = model.config;
  wider.intermediate_size = 8;
  Model<float> other(wider);
  const std::vector<float> before = other.values;
  expect_parts(
      data_error([&] { load_weights(dir.path(), other.config, other.layout, other.flat()); }),
      {"model.safetensors", "model.layers.0.mlp.gate_proj.weight", "found shape [7, 10]",
       "expected [8, 10]"});
  EXPECT_EQ(other.values, before);
}

TEST(WeightsIo, ATiedHeadIsNeverUntiedByAStoredCopy) {
  Model<float> model(tiny_config(true));
  const auto embedding = param_view(model.layout.params()[0], model.flat());
  std::vector<float> copy(embedding.as<float>(), embedding.as<float>() + embedding.elements());
  const TensorDeclaration head = {"lm_head.weight", DType::f32, {37, 10}};
  for (const bool equal : {true, false}) {
    const ScratchDir dir;
    if (!equal) copy.back() += 1;
    write_tensors(dir.path(), model, "", {{head, Tensor::view(std::span(copy), {37, 10})}});
    const LogCapture log;
    EXPECT_EQ(load<float>(dir.path(), model), model.values);
    if (equal)
      EXPECT_EQ(log.text(), "");
    else
      expect_parts(log.text(), {"lm_head.weight differs", "is ignored"});
  }
}

TEST(WeightsIo, UnusedTensorsAreNamedInOneWarning) {
  const ScratchDir dir;
  Model<float> model(tiny_config(true));
  std::vector<float> one = {1};
  std::vector<std::pair<TensorDeclaration, Tensor>> extra;
  for (int i = 0; i < 7; ++i)
    extra.push_back(
        {{fmt::format("extra{}", i), DType::f32, {1}}, Tensor::view(std::span(one), {1})});
  extra.push_back({{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {1}},
                   Tensor::view(std::span(one), {1})});
  write_tensors(dir.path(), model, "", extra);
  const LogCapture log;
  load<float>(dir.path(), model);
  expect_parts(log.text(), {"7 tensors", "extra0, extra1, extra2, extra3, extra4 and 2 more"});
  EXPECT_EQ(log.text().find("inv_freq"), std::string::npos);
}

TEST(RandomWeights, AreNormalWithTheGivenDeviation) {
  ModelConfig config = tiny_config(true);
  config.vocab_size = 20001;
  Model<float> model(config);
  const std::span<float> embedding =
      param_view(model.layout.params()[0], model.flat()).span<float>();
  double sum = 0, squares = 0, fourths = 0;
  for (const float x : embedding) {
    const double y = x / 0.02;
    sum += y;
    squares += y * y;
    fourths += y * y * y * y;
  }
  const auto n = static_cast<double>(embedding.size());  // 200010: a mean's error is 0.0022
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.015);
  EXPECT_NEAR(fourths / n, 3, 0.1);
}

TEST(RandomWeights, NormsAreOneAndPaddingIsZero) {
  Model<float> model(tiny_config(false));
  std::vector<bool> owned(model.values.size());
  for (const ParamSpec& param : model.layout.params()) {
    for (int64_t i = 0; i < param.elements(); ++i)
      owned[static_cast<size_t>(param.offset + i)] = true;
    if (is_decayed(param)) continue;
    for (const float x : param_view(param, model.flat()).span<float>())
      EXPECT_EQ(x, 1) << param.name;
  }
  for (size_t i = 0; i < owned.size(); ++i)
    if (!owned[i]) {
      EXPECT_EQ(std::bit_cast<uint32_t>(model.values[i]), 0U) << i;
    }
}

TEST(RandomWeights, DependOnSeedParameterAndElementAlone) {
  Model<float> model(tiny_config(false)), again(tiny_config(false)), other(tiny_config(false), 2);
  EXPECT_EQ(model.values, again.values);
  EXPECT_NE(model.values, other.values);
  // Neither the vocabulary's size nor how the work is split changes an element.
  ModelConfig larger = tiny_config(false);
  larger.vocab_size = 40000;
  Model<float> large(larger);
  EXPECT_TRUE(std::equal(model.values.begin(), model.values.begin() + 370, large.values.begin()));
  const auto view = [](Model<float>& of, size_t i) {
    const auto span = param_view(of.layout.params()[i], of.flat()).span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  EXPECT_EQ(view(model, 2), view(large, 2));  // layer 0's q_proj
  EXPECT_NE(view(model, 3), view(model, 4));  // k_proj and v_proj have the same shape
}

TEST(RandomWeights, InBfloat16AreTheSameRounded) {
  Model<float> model(tiny_config(false));
  Model<BFloat16> rounded(tiny_config(false));
  for (size_t i = 0; i < model.values.size(); ++i)
    ASSERT_EQ(rounded.values[i].bits, to_bfloat16(model.values[i]).bits) << i;
}

TEST(WeightsIo, LoadsARealModel) {
  MILES_NEED_SHARED("models/stories260K");
  const auto dir = test::shared_dir() / "models/stories260K";
  Model<float> model(read_hf_config(dir));
  EXPECT_EQ(model.layout.parameters(), 260032);
  EXPECT_EQ(model.config.eos_token_ids, (std::vector<int32_t>{1, 2}));
  const LogCapture log;
  const auto loaded = load<float>(dir, model);
  EXPECT_EQ(log.text(), "");
  const WeightFiles files(dir);
  std::vector<float> up(172 * 64);
  files.read("model.layers.4.mlp.up_proj.weight", Tensor::view(std::span(up), {172, 64}));
  const int64_t start =
      model.layout.layer(4).offset + model.layout.layer_offsets().gate_up + 172 * 64;
  EXPECT_TRUE(std::equal(up.begin(), up.end(), loaded.begin() + start));
  for (const float x : loaded) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace miles
