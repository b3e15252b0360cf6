#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/shared.h"

namespace miles {
namespace {

enum class Colour { red, green };

/// A command with one flag of each kind.
struct Example {
  CommandLine line{"example", "An example."};
  double lr = 0.5;
  int64_t count = 3;
  std::optional<int64_t> limit;
  Colour colour = Colour::red;
  std::vector<std::string> stop;
  std::vector<int32_t> ids;
  std::string name = "none";
  bool fast = false, safe = true;

  Example() {
    line.number<double>("--lr", lr, {.above_least = true}, "rate");
    line.number<int64_t>("--batch-count,--count", count, {.least = 1, .most = 9}, "count");
    line.number<int64_t>("--limit", limit, {}, "limit");
    line.choice<Colour>("--colour", colour, {{"red", Colour::red}, {"green", Colour::green}}, "c");
    line.texts("--stop", stop, "stop");
    line.numbers("--ids", ids, {.most = 99}, "ids");
    line.app().add_option("--name", name, "name");
    line.app().add_flag("--fast", fast, "fast");
    line.app().add_flag("!--no-safe", safe, "not safe");
  }

  void parse(std::vector<const char*> words) {
    line.parse(static_cast<int>(words.size()), words.data());
  }
};

std::string error_of(const std::vector<const char*>& words) {
  Example example;
  try {
    example.parse(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::flags);
    return error.what();
  }
  return "none";
}

TEST(CommandLine, ReadsEveryKindOfFlag) {
  Example example;
  example.parse({"--lr", "1e-3", "--count=4", "--limit", "0", "--colour", "green", "--stop",
                 "[END]", "a,b", "--ids", "1", "2", "--ids=3", "--name=", "--fast", "--no-safe",
                 "--stop", "--x"});
  EXPECT_EQ(example.lr, 1e-3);
  EXPECT_EQ(example.count, 4);
  EXPECT_EQ(example.limit, 0);
  EXPECT_EQ(example.colour, Colour::green);
  EXPECT_EQ(example.stop, (std::vector<std::string>{"[END]", "a,b", "--x"}));
  EXPECT_EQ(example.ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(example.name, "");
  EXPECT_TRUE(example.fast);
  EXPECT_FALSE(example.safe);
}

TEST(CommandLine, TakesWhatIsGivenLast) {
  Example example;
  example.parse({"--count", "4", "--count", "5"});
  EXPECT_EQ(example.count, 5);
}

TEST(CommandLine, RefusesTwoNamesOfAFlagThatContradictEachOther) {
  Example example;
  example.parse({"--count", "4", "--batch-count", "4"});
  EXPECT_EQ(example.count, 4);
  EXPECT_EQ(error_of({"--count", "4", "--batch-count", "5"}),
            "--count 4 and --batch-count 5: two names of one flag; pass one of them");
}

TEST(CommandLine, RefusesABadNumberInOneLine) {
  EXPECT_EQ(error_of({"--lr", "abc"}), "--lr: 'abc' is not a number above 0, up to 1e+30");
  for (const char* bad : {"0", "-1", "1e400", "nan", "inf", "", "1x", " 1"})
    EXPECT_EQ(error_of({"--lr", bad}),
              fmt::format("--lr: '{}' is not a number above 0, up to 1e+30", bad));
  for (const char* bad : {"0", "10", "-3", "2.5", "99999999999999999999", "0x2"})
    EXPECT_EQ(error_of({"--batch-count", bad}),
              fmt::format("--batch-count: '{}' is not a whole number from 1 to 9", bad));
  EXPECT_EQ(error_of({"--ids", "1", "100"}), "--ids: '100' is not a whole number from 0 to 99");
  EXPECT_EQ(error_of({"--colour", "blue"}), "--colour: 'blue' is not one of green, red");
}

TEST(CommandLine, NamesUnknownFlagsFirstInTheirOrderWithTheNearest) {
  EXPECT_EQ(error_of({"--lrr", "3", "--lr", "abc", "--batch_count=2", "--xyzzy", "--cuont"}),
            "no such flag: --lrr (is it --lr?), --batch_count (is it --batch-count?), --xyzzy, "
            "--cuont (is it --count?); see miles example --help");
  EXPECT_EQ(error_of({"--", "---", "--=x", "-x"}),
            "no such flag: --, ---, --, -x; see miles example --help");
  EXPECT_EQ(error_of({"--fast", "true"}), "no such flag: 'true'; see miles example --help");
  EXPECT_EQ(error_of({"--count", "5", "MiB", "--fast"}),
            "no such flag: 'MiB' (if it belongs to --count, write --count '5 MiB'); see miles "
            "example --help");
  EXPECT_EQ(error_of({"-lr", "1"}), "no such flag: -lr (is it --lr?); see miles example --help");
  Example required;
  required.line.app().get_option("--name")->required();
  try {
    required.parse({"--nmae", "x"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("no such flag: --nmae")) << error.what();
  }
}

TEST(CommandLine, RefusesWhatNoFileCouldHold) {
  EXPECT_EQ(error_of({"--name", "a\xff"}),
            "'a\uFFFD' is not UTF-8, as text and names of files must be");
}

TEST(CommandLine, AConfigWithoutANameIsNoConfig) {
  for (const std::vector<const char*>& words : {std::vector{"--config="}, {"--config", ""}}) {
    Example example;
    EXPECT_THROW(example.parse(words), Error);
  }
}

TEST(CommandLine, SaysWhichFlagLacksItsValue) {
  EXPECT_EQ(error_of({"--fast", "--lr"}), "--lr: its value is missing; see miles example --help");
  EXPECT_EQ(
      error_of({"--lr", "--fast"}),
      "--lr: its value is missing, for --fast is a flag; write --lr=--fast if it is the value");
  EXPECT_EQ(error_of({"--name", "--lr=3"}),
            "--name: its value is missing, for --lr=3 is a flag; write --name=--lr=3 if it is the "
            "value");
}

/// config.toml in a directory of its own.
struct ConfigFile {
  test::ScratchDir dir;
  std::string path;
  explicit ConfigFile(const std::string& content) : path((dir / "c.toml").string()) {
    std::ofstream(path) << content;
  }
};

TEST(CommandLine, TakesFlagsFromAFileUnlessTheyAreGiven) {
  const ConfigFile file(
      "lr = 2\ncount = 7\nstop = [\"[END]\", \"x\"]\nname = \"\"\nfast = true\nno-safe = false\n");
  Example example;
  example.parse({"--lr", "3", "--config", file.path.c_str(), "--stop", "y"});
  EXPECT_EQ(example.lr, 3);
  EXPECT_EQ(example.count, 7);
  EXPECT_EQ(example.stop, std::vector<std::string>{"y"});
  EXPECT_EQ(example.name, "");
  EXPECT_TRUE(example.fast);
  EXPECT_TRUE(example.safe);
}

TEST(CommandLine, NamesFileAndLineOfWhatIsWrongThere) {
  const auto error_in = [](const std::string& content) {
    const ConfigFile file(content);
    std::string error = error_of({"--config", file.path.c_str()});
    return error.starts_with(file.path) ? error.substr(file.path.size()) : error;
  };
  EXPECT_EQ(error_in("lr = 1\nlrr = 2\n"),
            ":2: there is no flag lrr (is it lr?); see miles example --help");
  EXPECT_EQ(error_in("\nlr = abc\n"), ":2: lr: 'abc' is not a number above 0, up to 1e+30");
  EXPECT_EQ(error_in("count = 10\n"), ":1: batch-count: '10' is not a whole number from 1 to 9");
  EXPECT_EQ(error_in("colour = \"blue\"\n"), ":1: colour: 'blue' is not one of green, red");
  EXPECT_EQ(error_in("fast = 3\n"), ":1: fast is a switch: it takes true or false, not '3'");
  EXPECT_EQ(error_in("lr = [1, 2]\n"), ":1: lr takes one value, not an array");
  EXPECT_EQ(error_in("config = \"x\"\n"), ":1: config is for the command line alone");
}

TEST(CommandLine, WritesWhatItReadsBack) {
  Example first;
  first.parse({"--lr", "2", "--stop", "a \"b\" \\d", "[END]", "--name", "", "--no-safe", "--ids",
               "7", "--colour", "green"});
  const ConfigFile file(first.line.to_toml());
  Example second;
  second.parse({"--config", file.path.c_str()});
  EXPECT_EQ(second.line.to_toml(), first.line.to_toml());
  EXPECT_EQ(second.stop, first.stop);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.name, "");
  EXPECT_FALSE(second.safe);
  EXPECT_EQ(second.colour, Colour::green);
}

}  // namespace
}  // namespace miles
