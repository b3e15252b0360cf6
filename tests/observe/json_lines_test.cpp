#include "observe/json_lines.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using nlohmann::ordered_json;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.what();
  }
  return "(no error)";
}

/// Files may not grow beyond `bytes` while it lives: a full disk without a disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

TEST(JsonLines, WritesOneLineAnObjectWithItsFieldsInOrder) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::fresh);
  lines.append({{"z", 1}, {"a", "x\ny"}});
  lines.append({{"nan", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"z\":1,\"a\":\"x\\ny\"}\n{\"nan\":null}\n");
}

TEST(JsonLines, InvalidUtf8IsReplacedRatherThanLosingTheLine) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::fresh);
  lines.append({{"text", "a\xff"}});
  EXPECT_EQ(read_json_lines(dir / "a.jsonl").at(0).at("text"), "a\xEF\xBF\xBD");
}

TEST(JsonLines, FreshDiscardsWhatWasThereAndResumeKeepsIt) {
  const test::ScratchDir dir;
  JsonLines(dir / "a.jsonl", JsonLines::Open::fresh).append({{"n", 1}});
  JsonLines(dir / "a.jsonl", JsonLines::Open::resume).append({{"n", 2}});
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":1}\n{\"n\":2}\n");
  JsonLines(dir / "a.jsonl", JsonLines::Open::fresh).append({{"n", 3}});
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":3}\n");
}

TEST(JsonLines, ResumeCutsOffATornLastLine) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "a.jsonl", "{\"n\":1}\n{\"n\":");
  JsonLines(dir / "a.jsonl", JsonLines::Open::resume).append({{"n", 2}});
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":1}\n{\"n\":2}\n");
  write_file_atomically(dir / "b.jsonl", "{\"n");  // nothing but a torn line
  JsonLines(dir / "b.jsonl", JsonLines::Open::resume).append({{"n", 2}});
  EXPECT_EQ(read_file(dir / "b.jsonl"), "{\"n\":2}\n");
}

TEST(JsonLines, TheLastLineIsReplacedAndTheNextOneComesBehindIt) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::fresh);
  lines.append({{"n", 1}});
  lines.replace_last({{"n", 2}, {"more", true}});
  lines.append({{"n", 3}});
  lines.replace_last({{"n", 4}});
  lines.append({{"n", 5}});
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":2,\"more\":true}\n{\"n\":4}\n{\"n\":5}\n");
}

TEST(JsonLines, DropFromLeavesEarlierRolloutsAndLinesWithoutTheField) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::fresh);
  lines.append({{"started", true}});
  for (int id : {0, 1, 2, 3}) lines.append({{"rollout_id", id}});
  lines.drop_from("rollout_id", 2);
  lines.append({{"rollout_id", 2}});  // goes to the new file, not the replaced one
  EXPECT_EQ(read_file(dir / "a.jsonl"),
            "{\"started\":true}\n{\"rollout_id\":0}\n{\"rollout_id\":1}\n{\"rollout_id\":2}\n");
}

TEST(JsonLines, DropFromRefusesARuinedFileAndLeavesItAsItWas) {
  const test::ScratchDir dir;
  const std::string ruined = "{\"rollout_id\":0}\nrubbish\n{\"rollout_id\":5}\n";
  write_file_atomically(dir / "a.jsonl", ruined);
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::resume);
  const std::string message = message_of([&] { lines.drop_from("rollout_id", 1); });
  EXPECT_NE(message.find("a.jsonl:2"), std::string::npos) << message;
  EXPECT_EQ(read_file(dir / "a.jsonl"), ruined);
}

TEST(JsonLines, AFullDiskIsAnErrorNamingThePathAndLeavesNoHalfLine) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "a.jsonl", JsonLines::Open::fresh);
  lines.append({{"n", 1}});
  std::string message;
  {
    const FileSizeLimit limit(20);
    message = message_of([&] { lines.append({{"text", std::string(100, 'x')}}); });
  }
  EXPECT_NE(message.find("a.jsonl"), std::string::npos) << message;
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":1}\n");
  lines.append({{"n", 2}});  // there is room again
  EXPECT_EQ(read_file(dir / "a.jsonl"), "{\"n\":1}\n{\"n\":2}\n");
}

TEST(JsonLines, ADirectoryThatIsNotThereIsNamed) {
  const test::ScratchDir dir;
  const std::string message =
      message_of([&] { JsonLines(dir / "none/a.jsonl", JsonLines::Open::fresh); });
  EXPECT_NE(message.find("none/a.jsonl"), std::string::npos) << message;
}

TEST(ReadJsonLines, SkipsATornLastLineAndRefusesARuinedOneNamingItsNumber) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "a.jsonl", "{\"n\":1}\n{\"n\":2}\n{\"n");
  EXPECT_EQ(read_json_lines(dir / "a.jsonl").size(), 2U);
  write_file_atomically(dir / "a.jsonl", "{\"n\":1}\n[3]\n");
  const std::string message = message_of([&] { read_json_lines(dir / "a.jsonl"); });
  EXPECT_NE(message.find("a.jsonl:2"), std::string::npos) << message;
  EXPECT_NE(message.find("[3]"), std::string::npos) << message;
}

}  // namespace
}  // namespace miles
