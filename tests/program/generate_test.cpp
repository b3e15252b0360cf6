// What `miles generate` prints.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

std::string printed(const std::vector<std::string>& flags) {
  const Outcome outcome = run_miles(
      with({"generate", "--model", std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
            "--init-random", "--max-new-tokens", "3", "--prompt", "1+1="},
           flags));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  return outcome.out;
}

int headings(const std::string& text) {
  int count = 0;
  for (size_t at = text.find("== "); at != std::string::npos; at = text.find("== ", at + 1))
    ++count;
  return count;
}

TEST(Generate, SeveralResponsesAreToldApart) {
  EXPECT_EQ(headings(printed({})), 0);
  const std::string samples = printed({"--n", "3"});
  EXPECT_EQ(headings(samples), 3) << samples;
  EXPECT_EQ(samples.rfind("== sample 1\n", 0), 0U) << samples;
  const std::string both = printed({"--n", "2", "--prompt", "2+2="});
  EXPECT_EQ(headings(both), 4) << both;
  EXPECT_NE(both.find("== prompt 2, sample 1\n"), std::string::npos) << both;
  EXPECT_EQ(headings(printed({"--n", "2", "--json"})), 0);
}

TEST(Generate, APromptFileIsText) {
  const ScratchDir dir;
  const auto run = [&](const std::string& text) {
    std::ofstream(dir / "prompt.txt") << text;
    return run_miles(
        {"generate", "--model", std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
         "--init-random", "--max-new-tokens", "3", "--prompt-file", (dir / "prompt.txt").string()});
  };
  EXPECT_EQ(run("1+1=").exit_code, 0);
  const Outcome refused = run("1+1=\xff");
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.log.find("prompt.txt: not UTF-8"), std::string::npos) << refused.log;
}

TEST(Program, OutputThatCannotBeWrittenIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const int status = std::system(MILES_BINARY " --help > /dev/full 2>/dev/null");
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(Generate, TellsTheStory) {
  MILES_NEED_SHARED("models/stories260K");
  const Outcome outcome =
      run_miles({"generate", "--hf-checkpoint", (shared_dir() / "models/stories260K").string(),
                 "--prompt", "", "--temperature", "0", "--max-new-tokens", "120"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_TRUE(outcome.out.starts_with(
      "Once upon a time, there was a little girl named Lily. She loved to play outside "
      "in the park. One day, she saw a big, red ball."))
      << outcome.out;
}

}  // namespace
}  // namespace miles::test
