// What may be given as a model, and what is said about what may not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

/// A response to one prompt from the model that these flags name.
Outcome generate(const std::vector<std::string>& model) {
  return run_miles(with({"generate", "--prompt", "2+2=", "--max-new-tokens", "4"}, model));
}

TEST(Models, ACheckpointOfOursIsOne) {
  const ScratchDir dir;
  const auto flags =
      with(small_run(dir / "run"), {"--save", (dir / "save").string(), "--save-interval", "3"});
  ASSERT_EQ(run_miles(flags).exit_code, 0);
  const std::string save = (dir / "save").string(), checkpoint = save + "/iter_0000005";
  const Outcome expected = generate({"--hf-checkpoint", checkpoint + "/hf"});
  ASSERT_EQ(expected.exit_code, 0) << expected.log;
  for (const char* flag : {"--hf-checkpoint", "--model"}) {
    const Outcome given = generate({flag, checkpoint});
    EXPECT_EQ(given.exit_code, 0) << given.log;
    EXPECT_EQ(given.out, expected.out);
    // Which of several is for the user to say.
    const Outcome several = generate({flag, save});
    EXPECT_EQ(several.exit_code, 3);
    EXPECT_NE(several.log.find(fmt::format("{} {}: ", flag, save)), std::string::npos)
        << several.log;
    EXPECT_NE(several.log.find("the newest is " + checkpoint), std::string::npos) << several.log;
  }
}

TEST(Models, ANameOfTheHubSaysHowToDownloadIt) {
  for (const auto& [flag, code] : {std::pair{"--hf-checkpoint", 3}, {"--model", 2}}) {
    const Outcome outcome = generate({flag, "Qwen/Qwen3-0.6B"});
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_NE(outcome.log.find("hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"),
              std::string::npos)
        << outcome.log;
  }
  EXPECT_EQ(generate({"--hf-checkpoint", "/no/where"}).log.find("hf download"), std::string::npos);
}

TEST(Models, AReferenceThatIsNotThereIsRefusedAtTheStart) {
  const ScratchDir dir;
  const Outcome outcome =
      run_miles(with(small_run(dir / "run"), {"--use-kl-loss", "--ref-load", "ORG/reference"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.log.find("--ref-load ORG/reference: no such directory"), std::string::npos)
      << outcome.log;
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

}  // namespace
}  // namespace miles::test
