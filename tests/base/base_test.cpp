#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/shell.h"
#include "base/units.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

TEST(Philox, MatchesTheKnownAnswersOfTheReferenceImplementation) {
  // Random123's kat_vectors, philox4x32-10 with a zero counter; our key folds the purpose in, so
  // undo it.
  const uint64_t fold = static_cast<uint64_t>(RngUse::test) * 0xD1342543DE82EF95ULL;
  const auto zero = philox(fold, RngUse::test, 0, 0);
  EXPECT_EQ(zero, (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const auto ones = philox(~0ULL ^ fold, RngUse::test, ~0ULL, ~0ULL);
  EXPECT_EQ(ones, (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, UniformStaysInsideTheOpenInterval) {
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const float u = uniform(7, RngUse::test, 0, i);
    ASSERT_GT(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(Permutation, HoldsEveryIndexOnceAndDependsOnTheStream) {
  auto a = permutation(100, 42, 0);
  EXPECT_NE(a, permutation(100, 42, 1));
  EXPECT_EQ(a, permutation(100, 42, 0));
  std::sort(a.begin(), a.end());
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(a[static_cast<size_t>(i)], i);
}

TEST(Units, ReadsBytesAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("24GiB", "f"), 24LL << 30);
  EXPECT_EQ(parse_bytes("24 g", "f"), 24LL << 30);
  EXPECT_EQ(parse_bytes("1.5MB", "f"), 1500000);
  EXPECT_EQ(parse_bytes("4096", "f"), 4096);
  EXPECT_THROW(parse_bytes("lots", "f"), Error);
  EXPECT_THROW(parse_bytes("3 GiBs", "f"), Error);
  EXPECT_THROW(parse_bytes("-1", "f"), Error);
}

TEST(Shell, AWordIsQuotedWhereAShellWouldReadSomethingElse) {
  EXPECT_EQ(shell_word("runs/a-1_b.c"), "runs/a-1_b.c");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("~/a"), "'~/a'");
  const test::ScratchDir dir;
  const std::string text = "my $HOME `a` \"b\" 'c' \\ d;e&f*g\n(h)#";
  const std::string command =
      "printf %s " + shell_word(text) + " >" + shell_word((dir / "said").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_file(dir / "said"), text);
}

TEST(Files, AFailedWriteLeavesTheOldContent) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "a", "old");
  make_directories(dir / "a.tmp");  // the neighbour cannot be made
  EXPECT_THROW(write_file_atomically(dir / "a", "new"), Error);
  EXPECT_EQ(read_file(dir / "a"), "old");
}

TEST(Files, ADirectoryIsClaimedOnce) {
  const test::ScratchDir dir;
  const auto path = dir / "new" / "run";
  {
    const ClaimedDirectory mine(path, "--run-dir");
    EXPECT_TRUE(std::filesystem::is_directory(path));
    EXPECT_THROW(ClaimedDirectory(path, "--run-dir"), Error);
    EXPECT_NO_THROW(ClaimedDirectory(dir / "other", "--run-dir"));
  }
  EXPECT_NO_THROW(ClaimedDirectory(path, "--run-dir"));
  write_file_atomically(dir / "file", "");
  EXPECT_THROW(ClaimedDirectory(dir / "file", "--run-dir"), Error);
}

}  // namespace
}  // namespace miles
