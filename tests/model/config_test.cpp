#include "model/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "model/layout.h"
#include "tests/hub/hub_testing.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;

/// The error of a preset after `change`.
std::string error_after(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config = *find_preset("qwen3-0.6b");
  change(config);
  return data_error([&] { check_config(config, "the place"); });
}

TEST(Presets, AreTheSizesThatWerePublished) {
  // qwen3-6b is not published: (2·151936 + 36·(6·8·128 + 32·128 + 3·10368 + 2) + 1)·3456 + 36·256.
  const std::vector<std::pair<std::string, int64_t>> published = {
      {"qwen3-0.6b", 596'049'920},   {"qwen3-1.7b", 1'720'574'976}, {"qwen3-4b", 4'022'468'096},
      {"qwen3-6b", 6'194'298'240},   {"qwen3-8b", 8'190'735'360},   {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
  };
  std::vector<std::string> names;
  for (const auto& [name, parameters] : published) {
    names.push_back(name);
    const ModelConfig config = find_preset(name).value();
    EXPECT_NO_THROW(check_config(config, name));
    EXPECT_EQ(ParamLayout(config).parameters(), parameters) << name;
  }
  EXPECT_EQ(preset_names(), names);
  EXPECT_EQ(find_preset("qwen3-7b"), std::nullopt);
}

TEST(CheckConfig, RefusesExtentsThatNoModelHas) {
  const std::pair<const char*, int64_t ModelConfig::*> extents[] = {
      {"vocab_size", &ModelConfig::vocab_size},
      {"hidden_size", &ModelConfig::hidden_size},
      {"intermediate_size", &ModelConfig::intermediate_size},
      {"num_hidden_layers", &ModelConfig::num_hidden_layers},
      {"num_attention_heads", &ModelConfig::num_attention_heads},
      {"num_key_value_heads", &ModelConfig::num_key_value_heads},
      {"head_dim", &ModelConfig::head_dim},
      {"max_position_embeddings", &ModelConfig::max_position_embeddings},
  };
  for (const auto& [name, member] : extents)
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 62})
      expect_parts(error_after([&](ModelConfig& config) { config.*member = value; }),
                   {"the place", name, std::to_string(value), "allowed are 1 to"});
}

TEST(CheckConfig, RefusesHeadsThatDoNotDivideAndOddOnes) {
  expect_parts(error_after([](ModelConfig& config) { config.num_key_value_heads = 3; }),
               {"num_attention_heads 16", "num_key_value_heads 3"});
  expect_parts(error_after([](ModelConfig& config) { config.head_dim = 63; }), {"head_dim is 63"});
}

TEST(CheckConfig, RefusesNumbersThatAreNotPositive) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_parts(error_after([](ModelConfig& config) { config.rms_norm_eps = 0; }),
               {"rms_norm_eps is 0"});
  expect_parts(error_after([&](ModelConfig& config) { config.rope_theta = nan; }),
               {"rope_theta is nan"});
  expect_parts(error_after([](ModelConfig& config) { config.initializer_range = -1; }),
               {"initializer_range is -1"});
  expect_parts(
      error_after([](ModelConfig& config) { config.rope_scaling = RopeScaling{.factor = 0}; }),
      {"rope_scaling", "factor is 0"});
  expect_parts(error_after([](ModelConfig& config) {
                 config.rope_scaling = RopeScaling{.low_freq_factor = 4, .high_freq_factor = 4};
               }),
               {"high_freq_factor is 4"});
}

TEST(CheckConfig, RefusesTokensOutsideTheVocabulary) {
  expect_parts(error_after([](ModelConfig& config) { config.eos_token_ids.push_back(151936); }),
               {"eos_token_id is 151936", "vocabulary of 151936"});
  expect_parts(error_after([](ModelConfig& config) { config.bos_token_id = -2; }),
               {"bos_token_id is -2"});
  ModelConfig none = *find_preset("qwen3-0.6b");
  none.bos_token_id = -1;
  none.eos_token_ids.clear();
  EXPECT_NO_THROW(check_config(none, "here"));
}

TEST(CheckConfig, RefusesWhatIsNotImplemented) {
  expect_parts(error_after([](ModelConfig& config) { config.model_type = "gpt2"; }),
               {"gpt2", "llama"});
  expect_parts(error_after([](ModelConfig& config) { config.dtype = DType::f16; }),
               {"float16", "bfloat16"});
  expect_parts(error_after([](ModelConfig& config) { config.qk_norm = false; }),
               {"qk_norm", "qwen3"});
}

}  // namespace
}  // namespace miles
