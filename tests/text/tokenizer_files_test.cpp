#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/shared.h"
#include "text/tokenizer.h"

namespace miles {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

/// A small valid tokenizer.json: a, b, ab, <s>.
json small_file() {
  return {{"added_tokens", {{{"id", 3}, {"content", "<s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model",
           {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

Tokenizer load(const json& file, const json& config = json::object()) {
  const test::ScratchDir scratch;
  write_file_atomically(scratch / "tokenizer.json", file.dump());
  write_file_atomically(scratch / "tokenizer_config.json", config.dump());
  return Tokenizer::load(scratch.path());
}

/// The message with which loading fails; empty where it does not.
std::string refusal(const json& file, const json& config = json::object()) {
  try {
    load(file, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.what();
  }
  return "";
}

void expect_refused(const json& file, const std::vector<std::string>& named) {
  const std::string message = refusal(file);
  EXPECT_FALSE(message.empty()) << "was taken: " << file.dump();
  for (const std::string& part : named)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

TEST(TokenizerFiles, ASmallFileIsTaken) {
  const Tokenizer tokenizer = load(small_file());
  EXPECT_EQ(tokenizer.encode("aab<s>b"), (Ids{0, 2, 3, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 2, 3, 1}), "aab<s>b");
  EXPECT_EQ(tokenizer.decode(Ids{0, 2, 3, 1}, {.skip_special = true}), "aabb");
}

TEST(TokenizerFiles, AMissingFileIsNamed) {
  const test::ScratchDir scratch;
  try {
    Tokenizer::load(scratch.path());
    FAIL() << "loaded an empty directory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos);
  }
}

TEST(TokenizerFiles, ATruncatedFileIsRefusedNamingThePlace) {
  const test::ScratchDir scratch;
  const std::string whole = small_file().dump();
  for (const size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    write_file_atomically(scratch / "tokenizer.json", whole.substr(0, length));
    try {
      Tokenizer::load(scratch.path());
      FAIL() << "loaded " << length << " of " << whole.size() << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("line 1"), std::string::npos) << error.what();
    }
  }
}

TEST(TokenizerFiles, AnUnknownTypeIsRefusedNamingIt) {
  const json strange = {{"type", "Strange"}};
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}) {
    json file = small_file();
    file[key] = strange;
    expect_refused(file, {"tokenizer.json", key, "'Strange'", "supported"});
    if (std::string(key) == "model") continue;
    file[key] = {{"type", "Sequence"},
                 {"normalizers", {strange}},
                 {"pretokenizers", {strange}},
                 {"processors", {strange}},
                 {"decoders", {strange}}};
    expect_refused(file, {key, "[0]", "'Strange'"});
    file[key] = {{"type", "Sequence"}};
    expect_refused(file, {key});
    file[key] = 7;
    expect_refused(file, {key, "7"});
  }
}

TEST(TokenizerFiles, AMergeOfAnUnknownTokenIsRefusedNamingBoth) {
  json file = small_file();
  file["model"]["merges"] = {"a b", "b c"};
  expect_refused(file, {"merges[1]", "'b'", "'c'"});
  file["model"]["merges"] = {"b a"};
  expect_refused(file, {"merges[0]", "'ba'"});
}

TEST(TokenizerFiles, AMalformedMergeIsRefused) {
  for (const json& merge : {json("ab"), json("a b c"), json(3), json({"a"}), json({"a", 1})}) {
    json file = small_file();
    file["model"]["merges"] = json::array({merge});
    expect_refused(file, {"merges[0]", merge.dump()});
  }
}

TEST(TokenizerFiles, AMalformedVocabularyIsRefused) {
  const auto with = [](const std::function<void(json&)>& change) {
    json file = small_file();
    change(file["model"]);
    return file;
  };
  expect_refused(with([](json& model) { model.erase("vocab"); }), {"vocab"});
  expect_refused(with([](json& model) { model["vocab"]["a"] = -1; }), {"'a'", "-1"});
  expect_refused(with([](json& model) { model["vocab"]["a"] = "x"; }), {"'a'"});
  expect_refused(with([](json& model) { model["vocab"]["a"] = 1; }), {"'a'", "'b'", "same id 1"});
  expect_refused(with([](json& model) { model["vocab"]["a"] = int64_t{1} << 40; }), {"'a'"});
  expect_refused(with([](json& model) { model["unk_token"] = "<unk>"; }), {"unk_token", "<unk>"});
  expect_refused(with([](json& model) { model["dropout"] = 0.1; }), {"dropout", "0.1"});
  expect_refused(with([](json& model) { model["byte_fallback"] = "yes"; }), {"byte_fallback"});
  json file = small_file();
  file.erase("model");
  expect_refused(file, {"model"});
}

TEST(TokenizerFiles, AddedTokensThatContradictAreRefused) {
  json file = small_file();
  file["added_tokens"].push_back({{"id", 3}, {"content", "<t>"}});
  expect_refused(file, {"'<s>'", "'<t>'", "3"});
  file = small_file();
  file["added_tokens"].push_back({{"id", 4}, {"content", "a"}});
  expect_refused(file, {"'a'", "4"});
  file = small_file();
  file["added_tokens"].push_back({{"id", 0}, {"content", "<t>"}});
  expect_refused(file, {"'<t>'", "'a'"});
  file = small_file();
  file["added_tokens"].push_back({{"content", "<t>"}});
  expect_refused(file, {"added_tokens[1]", "id"});
}

TEST(TokenizerFiles, ABrokenExpressionIsRefusedShowingIt) {
  json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  expect_refused(file, {"pre_tokenizer", "(a"});
  file["pre_tokenizer"]["pattern"] = {{"Glob", "*"}};
  expect_refused(file, {"Glob"});
  file["pre_tokenizer"]["pattern"] = {{"String", "a"}};
  file["pre_tokenizer"]["behavior"] = "Sideways";
  expect_refused(file, {"'Sideways'", "MergedWithNext"});
}

TEST(TokenizerFiles, ATemplateOfUnknownTokensIsRefused) {
  json file = small_file();
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<x>"}}}}}},
                            {"special_tokens", json::object()}};
  expect_refused(file, {"post_processor", "'<x>'"});
}

TEST(TokenizerFiles, ADecoderAfterAJoiningOneIsRefused) {
  json file = small_file();
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}};
  expect_refused(file, {"decoders[1]", "ByteFallback"});
}

TEST(TokenizerFiles, TheConfigNamesBosAndEos) {
  const Tokenizer tokenizer =
      load(small_file(), {{"bos_token", "<s>"}, {"eos_token", {{"content", "b"}}}});
  EXPECT_EQ(tokenizer.bos_id(), 3);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  const std::string message = refusal(small_file(), {{"eos_token", "</s>"}});
  EXPECT_NE(message.find("tokenizer_config.json"), std::string::npos) << message;
  EXPECT_NE(message.find("'</s>'"), std::string::npos) << message;
}

TEST(TokenizerFiles, TheConfigDecidesWhetherBosAndEosAreAdded) {
  json config = {{"bos_token", "<s>"}, {"eos_token", "b"}, {"add_bos_token", true}};
  EXPECT_EQ(load(small_file(), config).encode("a"), (Ids{3, 0}));
  config["add_eos_token"] = true;
  EXPECT_EQ(load(small_file(), config).encode("a"), (Ids{3, 0, 1}));
  EXPECT_EQ(load(small_file(), config).encode("a", {.add_special = false}), (Ids{0}));

  json file = small_file();
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 3}}, {"sep", {"b", 1}}};
  EXPECT_EQ(load(file).encode("a"), (Ids{3, 0, 1}));
  EXPECT_EQ(load(file, config).encode("a"), (Ids{3, 0, 1})) << "not twice";
  config["add_bos_token"] = false;
  EXPECT_EQ(load(file, config).encode("a"), (Ids{0, 1}));
}

}  // namespace
}  // namespace miles
