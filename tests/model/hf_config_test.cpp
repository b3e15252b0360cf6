#include "model/hf_config.h"

#include <gtest/gtest.h>

#include "hub/json_file.h"
#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;
using test::ScratchDir;
using Json = nlohmann::ordered_json;

const std::filesystem::path kFixtures =
    std::filesystem::path(MILES_SOURCE_DIR) / "tests/fixtures/hub";

Json json_of(const std::string& preset) {
  return Json::parse(to_hf_config_json(*find_preset(preset)));
}

Json llama_json() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 24,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5})");
}

ModelConfig read(const Json& json) {
  const ScratchDir dir;
  write_file_atomically(dir / "config.json", json.dump());
  return read_hf_config(dir.path());
}

/// The error of `json` with the fields of `changes`; a null among them removes the field.
std::string error_of(Json json, const Json& changes) {
  json.merge_patch(changes);
  const ScratchDir dir;
  write_file_atomically(dir / "config.json", json.dump());
  const std::string message = data_error([&] { read_hf_config(dir.path()); });
  expect_parts(message, {(dir / "config.json").string()});
  return message;
}

void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(to_hf_config_json(a), to_hf_config_json(b));
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
}

TEST(HfConfig, ReadsBothTransformersSpellingsOfQwen3) {
  ModelConfig expected = *find_preset("qwen3-0.6b");
  expected.eos_token_ids = {151645};  // the other one stands in generation_config.json
  for (const char* name : {"qwen3-transformers4", "qwen3-transformers5"})
    expect_equal(read_hf_config(kFixtures / name), expected);
}

TEST(HfConfig, ReadsBothTransformersSpellingsOfLlama3) {
  for (const char* name : {"llama3-transformers4", "llama3-transformers5"}) {
    const ModelConfig config = read_hf_config(kFixtures / name);
    EXPECT_EQ(config.model_type, "llama");
    EXPECT_FALSE(config.qk_norm);
    EXPECT_FALSE(config.tie_word_embeddings);
    EXPECT_EQ(config.head_dim, 128);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_EQ(config.rope_theta, 5e5);
    EXPECT_EQ(config.rope_scaling, (RopeScaling{8, 1, 4, 8192})) << name;
    EXPECT_EQ(config.dtype, DType::bf16);
    EXPECT_EQ(config.bos_token_id, 128000);
    EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  }
}

TEST(HfConfig, WhatIsWrittenIsReadBack) {
  for (const std::string& name : preset_names())
    expect_equal(read(json_of(name)), *find_preset(name));
  const ModelConfig llama3 = read_hf_config(kFixtures / "llama3-transformers5");
  const ModelConfig back = read(Json::parse(to_hf_config_json(llama3)));
  expect_equal(back, llama3);
  EXPECT_EQ(back.rope_scaling, llama3.rope_scaling);
}

TEST(HfConfig, EndIdsAreTheUnionOfBothFiles) {
  const ScratchDir dir;
  Json json = llama_json();
  json["eos_token_id"] = 7;
  write_file_atomically(dir / "config.json", json.dump());
  EXPECT_EQ(read_hf_config(dir.path()).eos_token_ids, (std::vector<int32_t>{7}));
  write_file_atomically(dir / "generation_config.json", R"({"eos_token_id": [3, 7, 9]})");
  EXPECT_EQ(read_hf_config(dir.path()).eos_token_ids, (std::vector<int32_t>{7, 3, 9}));
  write_file_atomically(dir / "generation_config.json", R"({"eos_token_id": 100})");
  expect_parts(data_error([&] { read_hf_config(dir.path()); }),
               {"generation_config.json", "eos_token_id is 100", "vocabulary of 100"});
  write_file_atomically(dir / "generation_config.json", R"({"eos_token_id": ["</s>"]})");
  expect_parts(data_error([&] { read_hf_config(dir.path()); }), {"generation_config.json", "</s>"});
}

TEST(HfConfig, GenerationConfigHoldsBeginAndEnd) {
  const Json json = Json::parse(to_hf_generation_config_json(*find_preset("qwen3-8b")));
  EXPECT_EQ(json["bos_token_id"], 151643);
  EXPECT_EQ(json["eos_token_id"], (Json{151645, 151643}));
  EXPECT_EQ(to_hf_generation_config_json(ModelConfig{}), "{}\n");
}

TEST(HfConfig, AbsentKeysMeanWhatTransformersTakesThemToMean) {
  const ModelConfig llama = read(llama_json());
  EXPECT_EQ(llama.head_dim, 6);
  EXPECT_EQ(llama.num_key_value_heads, 4);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.rope_scaling, std::nullopt);
  EXPECT_EQ(llama.dtype, DType::f32);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(llama.bos_token_id, -1);
  EXPECT_TRUE(llama.eos_token_ids.empty());
  Json qwen3 = json_of("qwen3-4b");
  qwen3.erase("head_dim");
  EXPECT_EQ(read(qwen3).head_dim, 128);  // and not 2560 / 32
}

TEST(HfConfig, Float16IsComputedInBfloat16) {
  Json json = llama_json();
  json["torch_dtype"] = "float16";
  EXPECT_EQ(read(json).dtype, DType::bf16);
  expect_parts(error_of(llama_json(), {{"dtype", "float8"}}), {"dtype is 'float8'"});
}

TEST(HfConfig, AMissingKeyIsNamed) {
  for (const char* key :
       {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings", "rms_norm_eps"})
    expect_parts(error_of(llama_json(), {{key, nullptr}}), {fmt::format("{} is missing", key)});
  expect_parts(
      error_of(json_of("qwen3-8b"), {{"rope_theta", nullptr}, {"rope_parameters", nullptr}}),
      {"rope_theta is missing"});
}

TEST(HfConfig, DamageIsNamedByLine) {
  const ScratchDir dir;
  write_file_atomically(dir / "config.json", "{\n  \"model_type\": \"llama\",\n");
  expect_parts(data_error([&] { read_hf_config(dir.path()); }),
               {"config.json: line", "not valid JSON"});
  std::filesystem::remove(dir / "config.json");
  expect_parts(data_error([&] { read_hf_config(dir.path()); }), {"config.json", "No such file"});
}

TEST(HfConfig, OtherArchitecturesAreRefusedWithTheSupportedList) {
  const char* supported = "supported are llama (LlamaForCausalLM) and qwen3 (Qwen3ForCausalLM)";
  expect_parts(error_of(llama_json(), {{"model_type", "qwen3_moe"}}), {"'qwen3_moe'", supported});
  expect_parts(error_of(llama_json(), {{"architectures", {"LlamaForSequenceClassification"}}}),
               {"LlamaForSequenceClassification", supported});
  expect_parts(error_of(json_of("qwen3-8b"), {{"architectures", {"LlamaForCausalLM"}}}),
               {supported});
}

TEST(HfConfig, WhatIsNotImplementedIsRefused) {
  const Json llama = llama_json();
  expect_parts(error_of(llama, {{"attention_bias", true}}), {"attention_bias is true"});
  expect_parts(error_of(llama, {{"mlp_bias", true}}), {"mlp_bias is true"});
  expect_parts(error_of(llama, {{"hidden_act", "gelu"}}), {"hidden_act is 'gelu'", "silu"});
  expect_parts(error_of(llama, {{"quantization_config", {{"quant_method", "fp8"}}}}),
               {"quantization_config"});
  expect_parts(error_of(llama, {{"partial_rotary_factor", 0.5}}), {"partial_rotary_factor is 0.5"});
  expect_parts(error_of(llama, {{"num_attention_heads", 5}}), {"hidden_size 24", "heads 5"});
}

TEST(HfConfig, ASlidingWindowIsRefusedOnlyWhereItIsUsed) {
  Json json = json_of("qwen3-8b");
  json["sliding_window"] = 4096;
  EXPECT_NO_THROW(read(json));  // use_sliding_window is false
  json["use_sliding_window"] = true;
  EXPECT_NO_THROW(read(json));  // it would begin after the last block
  expect_parts(error_of(json, {{"max_window_layers", 35}}), {"sliding-window"});
  expect_parts(error_of(json, {{"layer_types", {"full_attention", "sliding_attention"}}}),
               {"sliding_attention"});
}

TEST(HfConfig, RotaryScalingIsReadInEverySpelling) {
  const Json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  for (const char* type_key : {"rope_type", "type"}) {
    Json json = llama_json();
    json["rope_scaling"] = scaling;
    json["rope_scaling"][type_key] = "llama3";
    EXPECT_EQ(read(json).rope_scaling, (RopeScaling{32, 1, 4, 8192})) << type_key;
  }
  Json nested = llama_json();
  nested["rope_parameters"]["full_attention"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  EXPECT_EQ(read(nested).rope_theta, 7);
  EXPECT_EQ(read(nested).rope_scaling, std::nullopt);
}

TEST(HfConfig, OtherRotaryScalingsAreRefused) {
  for (const char* type : {"yarn", "linear", "dynamic", "longrope"})
    for (const char* key : {"rope_scaling", "rope_parameters"})
      expect_parts(error_of(llama_json(), {{key, {{"rope_type", type}, {"factor", 4.0}}}}),
                   {key, fmt::format("'{}'", type), "default and llama3"});
  expect_parts(error_of(llama_json(), {{"rope_scaling", {{"rope_type", "llama3"}}}}),
               {"rope_scaling: factor is missing"});
}

TEST(HfConfig, SpellingsThatContradictEachOtherAreRefused) {
  expect_parts(
      error_of(llama_json(), {{"rope_theta", 1.0}, {"rope_parameters", {{"rope_theta", 2.0}}}}),
      {"rope_theta is 1", "2 in rope_parameters"});
  expect_parts(error_of(json_of("qwen3-8b"), {{"rope_scaling",
                                               {{"rope_type", "llama3"},
                                                {"factor", 8.0},
                                                {"low_freq_factor", 1.0},
                                                {"high_freq_factor", 4.0},
                                                {"original_max_position_embeddings", 8192}}}}),
               {"contradict"});
}

}  // namespace
}  // namespace miles
