#include "rl/data_source.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using nlohmann::json;

/// Ten rows "p0" … "p9", labels 0 … 9, the even ones with metadata.
std::string ten_rows() {
  std::string text;
  for (int i = 0; i < 10; ++i) {
    json row = {{"input", "p" + std::to_string(i)}, {"label", i}};
    if (i % 2 == 0) row["metadata"] = {{"i", i}};
    text += row.dump() + (i == 4 ? "\n\n  \r\n" : "\n");
  }
  return text;
}

class DataFile : public testing::Test {
 protected:
  DataOptions write(const std::string& content, const std::string& slice = "") {
    write_file_atomically(dir_ / "rows.jsonl", content);
    return {.path = (dir_ / "rows.jsonl").string() + slice};
  }
  std::string error_of(const DataOptions& options, ErrorCode code = ErrorCode::data) {
    try {
      DataSource::load(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }
  std::string error_of_row(const std::string& row) {
    return error_of(write("{\"input\": \"a\", \"label\": \"b\"}\n" + row + "\n"));
  }
  test::ScratchDir dir_;
};

std::vector<std::string> take(DataSource& source, int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.push_back(source.next().text);
  return texts;
}

std::vector<std::string> texts_of(const DataSource& source) {
  std::vector<std::string> texts;
  for (const Prompt& prompt : source.prompts()) texts.push_back(prompt.text);
  return texts;
}

TEST_F(DataFile, RowsComeInOrderAndBlankLinesAreSkipped) {
  DataSource source = DataSource::load(write(ten_rows()));
  ASSERT_EQ(source.size(), 10);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 10; ++i) {
      const Prompt& prompt = source.next();
      EXPECT_EQ(prompt.text, "p" + std::to_string(i));
      EXPECT_EQ(prompt.label, std::to_string(i));
      EXPECT_EQ(prompt.row, i);
      const json metadata = i % 2 == 0 ? json{{"i", i}} : json::object();
      EXPECT_EQ(prompt.metadata, metadata);
      EXPECT_EQ(source.epoch(), epoch);
    }
  }
}

TEST_F(DataFile, ALastLineNeedsNoEndAndAByteOrderMarkIsNoText) {
  const auto source = DataSource::load(write("\xEF\xBB\xBF{\"input\": \"a\", \"label\": 0.5}"));
  ASSERT_EQ(source.size(), 1);
  EXPECT_EQ(source.prompts()[0].label, "0.5");
}

TEST_F(DataFile, SlicesAreThoseOfPython) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[2:4]"))), (Texts{"p2", "p3"}));
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[:2]"))), (Texts{"p0", "p1"}));
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[8:]"))), (Texts{"p8", "p9"}));
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[-2:]"))), (Texts{"p8", "p9"}));
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[7:-2]"))), (Texts{"p7"}));
  EXPECT_EQ(texts_of(DataSource::load(write(ten_rows(), "@[9:99]"))), (Texts{"p9"}));
  EXPECT_EQ(DataSource::load(write(ten_rows(), "@[6:]")).prompts()[0].row, 6);
  EXPECT_NE(error_of(write(ten_rows(), "@[4:4]")).find("selects none of the 10 rows"),
            std::string::npos);
  EXPECT_NE(error_of(write(ten_rows(), "@[4]"), ErrorCode::flags).find("no colon"),
            std::string::npos);
  EXPECT_NE(error_of(write(ten_rows(), "@[a:4]"), ErrorCode::flags).find("\"a\""),
            std::string::npos);
}

TEST_F(DataFile, ABadLineOutsideTheSliceDoesNotMatter) {
  EXPECT_EQ(DataSource::load(write(ten_rows() + "{broken\n", "@[:10]")).size(), 10);
}

TEST_F(DataFile, BadRowsAreRefusedNamingFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"input\": \"a\"", "rows.jsonl:2:14: not JSON: syntax error"},
      {"{\"input\" \"a\"}", "rows.jsonl:2:12: not JSON: syntax error"},
      {R"({"input": "a", "label": 1e999})", "rows.jsonl:2: not JSON: number overflow"},
      {"[1]", "rows.jsonl:2: the line is a JSON array"},
      {R"({"prompt": "a", "label": "b"})", "rows.jsonl:2: no key \"input\" (keys: label, prompt)"},
      {R"({"input": 3, "label": "b"})", "rows.jsonl:2: \"input\" is a number"},
      {R"({"input": "", "label": "b"})", "rows.jsonl:2: \"input\" is empty"},
      {R"({"input": [{"role": "user"}], "label": "b"})", "chat messages need a chat template"},
      {R"({"input": "a"})", "rows.jsonl:2: no key \"label\""},
      {R"({"input": "a", "label": null})", "rows.jsonl:2: \"label\" is a null"},
      {R"({"input": "a", "label": "b", "metadata": 3})", "rows.jsonl:2: \"metadata\" is a number"},
  };
  for (const auto& [row, message] : cases)
    EXPECT_NE(error_of_row(row).find(message), std::string::npos) << error_of_row(row);
}

TEST_F(DataFile, FilesWithoutRowsAreRefused) {
  EXPECT_NE(error_of(write("")).find("no rows"), std::string::npos);
  EXPECT_NE(error_of(write("\n \n")).find("no rows"), std::string::npos);
  EXPECT_NE(error_of({.path = (dir_ / "absent.jsonl").string()}).find("absent.jsonl"),
            std::string::npos);
  EXPECT_NE(error_of({.path = "rows.parquet"}).find("convert"), std::string::npos);
}

TEST_F(DataFile, DroppedPromptsAreNeverGiven) {
  DataOptions options = write(ten_rows());
  options.shuffle = true;
  DataSource source = DataSource::load(options);
  EXPECT_EQ(source.keep_if([](const Prompt& prompt) { return prompt.row % 3 == 0; }), 6);
  EXPECT_EQ(source.size(), 4);
  const auto given = take(source, 4);
  EXPECT_EQ(std::set<std::string>(given.begin(), given.end()),
            (std::set<std::string>{"p0", "p3", "p6", "p9"}));
}

TEST_F(DataFile, WithoutALabelKeyThereAreNoLabels) {
  DataOptions options = write("{\"input\": \"a\", \"label\": \"b\"}\n");
  options.label_key = "";
  EXPECT_EQ(DataSource::load(options).prompts()[0].label, "");
}

TEST_F(DataFile, ShuffledEpochsHoldEveryPromptOnceInAnOrderOfTheirOwn) {
  DataOptions options = write(ten_rows());
  options.shuffle = true;
  DataSource source = DataSource::load(options);
  const auto first = take(source, 10), second = take(source, 10);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 10U);
  EXPECT_EQ(std::set<std::string>(second.begin(), second.end()).size(), 10U);
  options.seed += 1;  // epoch e of seed s is epoch e - 1 of seed s + 1
  DataSource later = DataSource::load(options);
  EXPECT_EQ(take(later, 10), second);
}

TEST_F(DataFile, AResumedRunNeitherSkipsNorRepeatsWhereverItStopped) {
  DataOptions options = write(ten_rows());
  options.shuffle = true;
  for (int stop = 0; stop <= 25; ++stop) {
    DataSource whole = DataSource::load(options), resumed = DataSource::load(options);
    for (int i = 0; i < stop; ++i) whole.next_group(4);
    resumed.restore(json::parse(whole.state().dump()));
    for (int i = 0; i < 15; ++i) {
      const auto expected = whole.next_group(4), found = resumed.next_group(4);
      for (size_t k = 0; k < 4; ++k) {
        EXPECT_EQ(expected[k].prompt, found[k].prompt);
        EXPECT_EQ(expected[k].group_index, found[k].group_index);
        EXPECT_EQ(expected[k].index, found[k].index);
      }
    }
  }
}

TEST_F(DataFile, AStateOfOtherDataOrOrderIsRefused) {
  DataOptions options = write(ten_rows());
  DataSource source = DataSource::load(options);
  const json state = source.state();
  DataOptions shorter = options;
  shorter.path += "@[:9]";
  EXPECT_THROW(DataSource::load(shorter).restore(state), Error);
  DataOptions shuffled = options;
  shuffled.shuffle = true;
  EXPECT_THROW(DataSource::load(shuffled).restore(state), Error);
  DataOptions reseeded = options;
  reseeded.seed = 1;
  EXPECT_THROW(DataSource::load(reseeded).restore(state), Error);
  json damaged = state;
  damaged["sample_offset"] = 11;
  EXPECT_THROW(source.restore(damaged), Error);
  damaged["sample_offset"] = -1;
  EXPECT_THROW(source.restore(damaged), Error);
  damaged.erase("sample_offset");
  EXPECT_THROW(source.restore(damaged), Error);
  EXPECT_THROW(source.restore(json::array()), Error);
}

TEST_F(DataFile, GroupsNumberTheirSamplesFromTheStartOfTheRun) {
  DataSource source = DataSource::load(write(ten_rows()));
  source.next_group(3);
  const auto group = source.next_group(3);
  ASSERT_EQ(group.size(), 3U);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(group[k].group_index, 1);
    EXPECT_EQ(group[k].index, 3 + static_cast<int64_t>(k));
    EXPECT_EQ(group[k].prompt, "p1");
    EXPECT_EQ(group[k].label, "1");
    EXPECT_EQ(group[k].status, SampleStatus::pending);
    EXPECT_FALSE(group[k].reward.has_value());
  }
}

TEST(Gsm8k, IsReadWithItsOwnKeys) {
  MILES_NEED_SHARED("data/gsm8k/test.jsonl");
  const auto source =
      DataSource::load({.path = (test::shared_dir() / "data/gsm8k/test.jsonl").string(),
                        .input_key = "question",
                        .label_key = "answer"});
  EXPECT_EQ(source.size(), 1319);
  EXPECT_TRUE(source.prompts()[0].label.ends_with("#### 18"));
}

}  // namespace
}  // namespace miles
