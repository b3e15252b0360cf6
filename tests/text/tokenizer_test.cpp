#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "tests/support/shared.h"
#include "text/detokenizer.h"

namespace miles {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::filesystem::path fixtures() {
  return std::filesystem::path(MILES_SOURCE_DIR) / "tests/fixtures/text";
}

json fixture(const std::string& name) {
  return json::parse(read_file(fixtures() / (name + ".json")));
}

/// A text as the fixture writes it: a string, or {"hex": bytes} where it is not UTF-8.
std::string text_of(const json& value) {
  if (value.is_string()) return value;
  const std::string hex = value["hex"];
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string fnv1a(const Ids& ids) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t id : ids)
    for (int byte = 0; byte < 4; ++byte)
      hash = (hash ^ (static_cast<uint32_t>(id) >> 8 * byte & 0xFF)) * 0x100000001B3u;
  return fmt::format("{:016x}", hash);
}

void expect_strings_equal(const Tokenizer& tokenizer, const json& rows) {
  ASSERT_GT(rows.size(), 400u);
  for (const json& row : rows)
    EXPECT_EQ(tokenizer.encode(text_of(row[0])), row[1].get<Ids>()) << row[0];
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids, DecodeOptions options) {
  Detokenizer detokenizer(tokenizer, options);
  std::string pieces;
  for (const int32_t id : ids) pieces += detokenizer.push(id);
  pieces += detokenizer.flush();
  EXPECT_EQ(pieces, detokenizer.text());
  return pieces;
}

void expect_decodes_equal(const Tokenizer& tokenizer, const json& rows) {
  ASSERT_GE(rows.size(), 100u);
  for (const json& row : rows) {
    const Ids ids = row[0];
    const std::string whole = row[1];
    const std::string skipped = row[2].is_null() ? whole : row[2].get<std::string>();
    EXPECT_EQ(tokenizer.decode(ids), whole) << row[0];
    EXPECT_EQ(tokenizer.decode(ids, {.skip_special = true}), skipped) << row[0];
    EXPECT_EQ(stream(tokenizer, ids, {}), whole) << row[0];
    EXPECT_EQ(stream(tokenizer, ids, {.skip_special = true}), skipped) << row[0];
  }
}

void expect_questions_equal(const Tokenizer& tokenizer, const json& rows) {
  std::map<std::string, std::vector<std::string>> lines;
  for (const char* file : {"train.jsonl", "test.jsonl"}) {
    std::istringstream content(read_file(test::shared_dir() / "data/gsm8k" / file));
    for (std::string line; std::getline(content, line);) lines[file].push_back(line);
  }
  ASSERT_GE(rows.size(), 1000u);
  for (const json& row : rows) {
    const std::string question = json::parse(lines.at(row[0]).at(row[1].get<size_t>()))["question"];
    const Ids ids = tokenizer.encode(question);
    EXPECT_EQ(ids.size(), row[2].get<size_t>()) << question;
    EXPECT_EQ(fnv1a(ids), row[3].get<std::string>()) << question;
  }
}

TEST(Tokenizer, Qwen3GivesTheIdsOfHuggingFace) {
  MILES_NEED_SHARED("tokenizers/qwen3");
  MILES_NEED_SHARED("data/gsm8k");
  const Tokenizer tokenizer = Tokenizer::load(test::shared_dir() / "tokenizers/qwen3");
  const json rows = fixture("qwen3");
  expect_strings_equal(tokenizer, rows["strings"]);
  expect_questions_equal(tokenizer, rows["questions"]);
  expect_decodes_equal(tokenizer, rows["decodes"]);

  EXPECT_EQ(tokenizer.vocab_size(), 151669);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.id_of("<|im_end|>"));
  EXPECT_EQ(tokenizer.eos_id(), 151645);
  EXPECT_TRUE(tokenizer.is_special(151645));
  EXPECT_FALSE(tokenizer.is_special(151667)) << "<think> is added, not special";
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
}

TEST(Tokenizer, Stories260KGivesTheIdsOfHuggingFace) {
  MILES_NEED_SHARED("models/stories260K");
  MILES_NEED_SHARED("data/gsm8k");
  const Tokenizer tokenizer = Tokenizer::load(test::shared_dir() / "models/stories260K");
  const json rows = fixture("stories260K");
  expect_strings_equal(tokenizer, rows["strings"]);
  expect_questions_equal(tokenizer, rows["questions"]);
  expect_decodes_equal(tokenizer, rows["decodes"]);
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.bos_id(), 1);
}

TEST(Tokenizer, ALlama3StyleFileGivesTheIdsOfHuggingFace) {
  const Tokenizer tokenizer = Tokenizer::load(fixtures() / "llama3_like");
  const json rows = fixture("llama3_like");
  expect_strings_equal(tokenizer, rows["strings"]);
  expect_decodes_equal(tokenizer, rows["decodes"]);
  EXPECT_EQ(tokenizer.bos_id(), tokenizer.id_of("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.id_of("<|end_of_text|>")) << "named by an object";
}

TEST(Tokenizer, AMetaspaceFileGivesTheIdsOfHuggingFace) {
  const Tokenizer tokenizer = Tokenizer::load(fixtures() / "metaspace_like");
  const json rows = fixture("metaspace_like");
  expect_strings_equal(tokenizer, rows["strings"]);
  expect_decodes_equal(tokenizer, rows["decodes"]);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
}

TEST(Tokenizer, IgnoreMergesTakesAWordThatIsATokenWhole) {
  const Tokenizer tokenizer = Tokenizer::load(fixtures() / "llama3_like");
  EXPECT_EQ(tokenizer.encode(" zebra", {.add_special = false}), Ids{*tokenizer.id_of("Ġzebra")});
  EXPECT_GT(tokenizer.encode(" zebras", {.add_special = false}).size(), 2u);
}

TEST(Tokenizer, BosIsAddedOnceEvenWhenTheTextPrintsIt) {
  const Tokenizer tokenizer = Tokenizer::load(fixtures() / "llama3_like");
  const Ids plain = tokenizer.encode("hello");
  EXPECT_EQ(plain.front(), tokenizer.bos_id());
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|>hello"), plain);
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|>hello", {.add_special = false}), plain);
  EXPECT_EQ(tokenizer.encode("hello", {.add_special = false}), Ids(plain.begin() + 1, plain.end()));
  EXPECT_EQ(tokenizer.encode(""), Ids{*tokenizer.bos_id()});
}

TEST(Tokenizer, BytesRoundTripAnyUtf8) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.bos_id(), 256);
  EXPECT_EQ(tokenizer.eos_id(), 257);
  EXPECT_EQ(tokenizer.encode("aé\n", {.add_special = false}), (Ids{97, 0xC3, 0xA9, 10}));
  EXPECT_EQ(tokenizer.encode("a"), (Ids{256, 97}));
  EXPECT_EQ(tokenizer.encode("a<eos>b"), (Ids{256, 97, 257, 98}));
  std::string all;
  for (int byte = 0; byte < 128; ++byte) all += static_cast<char>(byte);
  all += "你好 😀";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(all), {.skip_special = true}), all);
  EXPECT_EQ(tokenizer.decode(Ids{256, 97, 257}), "<bos>a<eos>");
  EXPECT_EQ(tokenizer.decode(Ids{0xE4, 0xBD, 97, 0xFF}), "\uFFFDa\uFFFD");
}

TEST(Tokenizer, TextThatIsNotUtf8IsRepairedFirst) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.encode("a\xE4\xBDz"), tokenizer.encode("a\uFFFDz"));
  EXPECT_EQ(tokenizer.encode("\xFF\xFE"), tokenizer.encode("\uFFFD\uFFFD"));
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.decode(Ids{97, 258, 100000, -1, 98}), "ab");
  EXPECT_EQ(tokenizer.text_of(258), std::nullopt);
  EXPECT_EQ(tokenizer.text_of(-1), std::nullopt);
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, SeveralThreadsGetWhatOneGets) {
  const Tokenizer tokenizer = Tokenizer::load(fixtures() / "llama3_like");
  const json rows = fixture("llama3_like")["strings"];
  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (const json& row : rows)
        different += tokenizer.encode(text_of(row[0])) != row[1].get<Ids>();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

// A quadratic merge or split would take minutes here.
TEST(Tokenizer, VeryLongInputsOfOneKindAreFast) {
  MILES_NEED_SHARED("tokenizers/qwen3");
  const Tokenizer tokenizer = Tokenizer::load(test::shared_dir() / "tokenizers/qwen3");
  for (const std::string unit : {"a", " ", "\n", "<", " \n", "\u0301\u0323", "\xFF"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_LT(tokenizer.encode(text).size(), text.size() + 1) << unit;
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(std::string(1'000'000, ' '))),
            std::string(1'000'000, ' '));
}

}  // namespace
}  // namespace miles
