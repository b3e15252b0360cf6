#include "rl/reward_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

/// A worker in shell: $id and $response are the request's, the body answers.
std::string worker(const std::string& body) {
  return "while IFS= read -r line; do id=${line#*'\"id\":'}; id=${id%%,*}; "
         "response=${line#*'\"response\":\"'}; response=${response%%'\"'*}; " +
         body + "; done";
}

const std::string kAnswer = R"(echo "{\"id\": $id, \"reward\": $response}")";

std::vector<RewardRequest> requests(const std::vector<std::string>& responses) {
  std::vector<RewardRequest> out;
  for (const std::string& response : responses)
    out.push_back({.id = 100 + static_cast<int64_t>(out.size()),
                   .prompt = "p",
                   .response = response,
                   .label = "l",
                   .metadata = nlohmann::json::object()});
  return out;
}

std::vector<RewardResult> run(RewardCommandOptions options,
                              const std::vector<std::string>& responses) {
  RewardCommand command(std::move(options));
  return command.score(requests(responses));
}

std::string error_of(RewardCommandOptions options, const std::vector<std::string>& responses) {
  try {
    run(std::move(options), responses);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_failed(const RewardResult& result, const std::string& part) {
  EXPECT_FALSE(result.reward.has_value());
  EXPECT_NE(result.problem.find(part), std::string::npos) << result.problem;
}

size_t open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST(RewardCommand, ScoresEachSampleAndKeepsTheOrder) {
  std::vector<std::string> responses;
  for (int i = 0; i < 50; ++i) responses.push_back(std::to_string(i) + ".5");
  const auto results = run({.command = worker(kAnswer), .workers = 3}, responses);
  ASSERT_EQ(results.size(), 50U);
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(results[i].reward, static_cast<double>(i) + 0.5);
}

TEST(RewardCommand, ItsWorkersStayBetweenCalls) {
  RewardCommand command(
      {.command = "n=0; " + worker(R"(n=$((n+1)); echo "{\"id\": $id, \"reward\": $n}")")});
  EXPECT_EQ(command.score(requests({"a", "b"}))[1].reward, 2);
  EXPECT_EQ(command.score(requests({"a", "b"}))[1].reward, 4);
  EXPECT_TRUE(command.score({}).empty());
}

TEST(RewardCommand, AReplyIsSeenAtOnceHoweverFastItComes) {
  RewardCommand command({.command = worker(kAnswer), .timeout_seconds = 30});
  const Stopwatch watch;
  for (int i = 0; i < 50; ++i) command.score(requests({"1", "2"}));
  EXPECT_LT(watch.seconds(), 20);  // one reply overlooked waits for the timeout
}

TEST(RewardCommand, WorkersWorkSideBySide) {
  // Each waits until all four are at work: one after the other they would wait for ever.
  const test::ScratchDir dir;
  const std::string here = dir.path().string();
  const std::string meet = ": > " + here + "/$response; while [ $(ls " + here +
                           " | wc -l) -lt 4 ]; do sleep 0.01; done; " + kAnswer;
  const auto results =
      run({.command = worker(meet), .workers = 4, .timeout_seconds = 30}, {"1", "2", "3", "4"});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i].reward, static_cast<double>(i + 1));
}

TEST(RewardCommand, NullIsAFailureAndTheWorkerStays) {
  RewardCommand command(
      {.command =
           "n=0; " +
           worker(
               R"(n=$((n+1)); [ $n = 2 ] && n=null; echo "{\"id\": $id, \"reward\": $n}"; [ $n = null ] && n=2)")});
  const auto results = command.score(requests({"a", "b", "c"}));
  EXPECT_EQ(results[0].reward, 1);
  expect_failed(results[1], "null");
  EXPECT_EQ(results[2].reward, 3);
}

TEST(RewardCommand, OneThatOverflowsAnAdvantageIsAFailure) {
  RewardCommand command({.command = worker(R"(echo "{\"id\": $id, \"reward\": $response}")")});
  const auto results = command.score(requests({"1e308", "-1e36", "-1e38"}));
  expect_failed(results[0], "beyond");
  EXPECT_EQ(results[1].reward, -1e36);
  expect_failed(results[2], "beyond");
}

TEST(RewardCommand, AWorkerThatRaisesFailsItsSampleAlone) {
  const std::string body =
      "if [ $response = bad ]; then echo 'it hurts' >&2; exit 3; fi; " + kAnswer;
  const auto results = run({.command = worker(body)}, {"1", "bad", "2", "bad", "3"});
  EXPECT_EQ(results[0].reward, 1);
  expect_failed(results[1], "exited with status 3; its last words: it hurts");
  EXPECT_EQ(results[2].reward, 2);
  expect_failed(results[3], "it hurts");
  EXPECT_EQ(results[4].reward, 3);
}

TEST(RewardCommand, AWorkerThatDiesMidLineFailsItsSample) {
  const std::string body =
      "if [ $response = bad ]; then printf '{\"id\": '; kill -9 $$; fi; " + kAnswer;
  const auto results = run({.command = worker(body)}, {"1", "bad", "2"});
  expect_failed(results[1], "ended by signal 9");
  EXPECT_EQ(results[2].reward, 2);
}

TEST(RewardCommand, AHangingWorkerIsKilledWithAllThatItStarted) {
  const test::ScratchDir dir;
  const std::string pid_file = (dir / "pid").string();
  const std::string body =
      "if [ $response = bad ]; then sleep 1000 & echo $! > " + pid_file + "; wait; fi; " + kAnswer;
  const Stopwatch watch;
  const auto results = run({.command = worker(body), .timeout_seconds = 1.5}, {"1", "bad", "2"});
  EXPECT_LT(watch.seconds(), 30);
  EXPECT_EQ(results[0].reward, 1);
  expect_failed(results[1], "no reply within 1.5 seconds");
  EXPECT_EQ(results[2].reward, 2);
  const pid_t sleeper = std::stoi(read_file(pid_file));
  // Killed with its group; whoever adopts it may take a moment to reap it.
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(sleeper) + "/stat");
    std::string pid, name, state;
    gone = !(stat >> pid >> name >> state) || state == "Z" || state == "X";
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
}

TEST(RewardCommand, RepliesThatAreNotAsAgreedAreFailuresNeverZeros) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"echo nonsense", "is not a JSON object"},
      {"echo '[1]'", "is not a JSON object"},
      {"echo ''", "is not a JSON object"},
      {R"(echo '{"id": 7, "reward": 1}')", "has not the id 101"},
      {R"(echo '{"reward": 1}')", "has not the id 101"},
      {R"(echo "{\"id\": $id}")", "has no \"reward\""},
      {R"(echo "{\"id\": $id, \"reward\": NaN}")", "is not a JSON object"},
      {R"(echo "{\"id\": $id, \"reward\": 1e999}")", "is not a JSON object"},
      {R"(echo "{\"id\": $id, \"reward\": \"1\"}")", "no number"},
      {R"(echo "{\"id\": $id, \"reward\": true}")", "no number"},
  };
  for (const auto& [bad, message] : cases) {
    const std::string body = "if [ $response = bad ]; then " + bad + "; else " + kAnswer + "; fi";
    const auto results = run({.command = worker(body)}, {"1", "bad", "2"});
    EXPECT_EQ(results[0].reward, 1);
    expect_failed(results[1], message);
    EXPECT_EQ(results[2].reward, 2);
  }
}

TEST(RewardCommand, AReplyWithoutEndIsCutOff) {
  const std::string body = "if [ $response = bad ]; then cat /dev/zero; else " + kAnswer + "; fi";
  const auto results = run({.command = worker(body), .timeout_seconds = 30}, {"1", "bad", "2"});
  expect_failed(results[1], "longer than 1 MiB");
  EXPECT_EQ(results[2].reward, 2);
}

TEST(RewardCommand, AWorkerThatEndsBetweenSamplesCostsNone) {
  const auto results =
      run({.command = "read -r line; id=${line#*'\"id\":'}; id=${id%%,*}; echo \"{\\\"id\\\": $id, "
                      "\\\"reward\\\": 1}\"; exec >&-; exit"},
          {"a", "b", "c"});
  int scored = 0;
  for (const RewardResult& result : results) scored += result.reward.has_value() ? 1 : 0;
  EXPECT_GE(scored, 1);  // it may not have ended yet when the next sample is given to it
}

TEST(RewardCommand, LargeLinesBothWaysAndMuchStderrDoNotDeadlock) {
  // Says 200 KB on stderr and the first 500 KB of its reply before it reads the 1 MB.
  const std::string talk =
      "head -c 200000 /dev/zero | tr '\\0' 'x' >&2; "
      "printf '{\"id\": 100, \"said\": \"'; "
      "head -c 500000 /dev/zero | tr '\\0' 'x'; ";
  const std::string answer = "size=$(head -n 1 | wc -c); echo \"\\\", \\\"reward\\\": $size}\"";
  const auto results = run({.command = talk + answer}, {std::string(1 << 20, 'a')});
  ASSERT_TRUE(results[0].reward.has_value()) << results[0].problem;
  EXPECT_GT(*results[0].reward, 1 << 20);
}

TEST(RewardCommand, ResponsesThatAreNoTextArriveAsJson) {
  const auto results =
      run({.command = worker(R"(echo "{\"id\": $id, \"reward\": ${#response}}")")}, {"a\xFF"});
  ASSERT_TRUE(results[0].reward.has_value()) << results[0].problem;
}

TEST(RewardCommand, AllFailedIsAnErrorNamingTheCommandAndWhatItSaid) {
  const std::string message =
      error_of({.command = worker("echo 'no such model' >&2; exit 1")}, {"1", "2"});
  EXPECT_NE(message.find("not one of 2 samples"), std::string::npos) << message;
  EXPECT_NE(message.find("no such model"), std::string::npos) << message;
  EXPECT_NE(message.find("while IFS="), std::string::npos) << message;
}

TEST(RewardCommand, ACommandThatCannotStartIsAnErrorLongBeforeTheLastSample) {
  const std::string message =
      error_of({.command = "/no/such/program"}, std::vector<std::string>(10000, "1"));
  EXPECT_NE(message.find("failed 5 times and never answered"), std::string::npos) << message;
  EXPECT_NE(message.find("status 127"), std::string::npos) << message;
  EXPECT_NE(message.find("not found"), std::string::npos) << message;
}

TEST(RewardCommand, OneThatCannotStartIsKnownBeforeItIsAsked) {
  for (const auto& [line, says] : {std::pair{"no-such-program", "exited with status 127"},
                                   {"/dev/null", "exited with status 126"},
                                   {"echo the reason >&2; exit 3", "its last words: the reason"}}) {
    RewardCommand command({.command = line, .workers = 2});
    try {
      command.await_start();
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("before it was asked"), std::string::npos);
    }
  }
  // One that takes its time, and one of which a worker lives.
  RewardCommand late({.command = "sleep 0.4; exit 3"});
  EXPECT_NO_THROW(late.await_start());
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_THROW(late.check_started(), Error);
  RewardCommand good({.command = worker(kAnswer)});
  EXPECT_NO_THROW(good.await_start());
  EXPECT_EQ(good.score(requests({"1"}))[0].reward, 1.0);
  EXPECT_NO_THROW(good.check_started());
}

TEST(RewardCommand, CanBeUsedAgainAfterAnError) {
  const test::ScratchDir dir;
  const std::string flag = (dir / "ready").string();
  RewardCommand command(
      {.command = worker("[ -e " + flag + " ] || exit 1; " + kAnswer), .workers = 2});
  EXPECT_THROW(command.score(requests({"1", "2", "3", "4", "5", "6", "7", "8"})), Error);
  write_file_atomically(flag, "");
  EXPECT_EQ(command.score(requests({"4"}))[0].reward, 4);
}

TEST(RewardCommand, LeavesNoProcessAndNoDescriptorBehind) {
  const size_t before = open_files();
  {
    const std::string body = "if [ $response = bad ]; then exit 1; fi; " + kAnswer;
    RewardCommand command({.command = worker(body), .workers = 3});
    command.score(requests({"1", "bad", "bad", "2"}));
    EXPECT_GT(open_files(), before);
  }
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child, not even a zombie
  EXPECT_EQ(errno, ECHILD);
}

TEST(RewardCommand, NothingElseOfOursIsOpenInItsWorkers) {
  // What we ourselves were started with may stay open in them; pipes to the other workers may not.
  size_t inherited = 0;
  for (int fd = 3; fd < 256; ++fd) {
    const int fd_flags = fcntl(fd, F_GETFD);
    if (fd_flags >= 0 && (fd_flags & FD_CLOEXEC) == 0) ++inherited;
  }
  const std::string count_streams =
      R"(n=0; for f in /proc/$$/fd/*; do case ${f##*/} in [3-9]|??|???) [ -e "$f" ] && n=$((n+1));; esac; done; )"
      R"(echo "{\"id\": $id, \"reward\": $n}")";
  const auto results =
      run({.command = worker(count_streams), .workers = 3}, {"a", "b", "c", "d", "e", "f"});
  for (const RewardResult& result : results)
    EXPECT_EQ(result.reward, static_cast<double>(inherited)) << result.problem;
}

TEST(RewardCommand, AWorkerThatIgnoresTheEndOfItsInputIsKilled) {
  const Stopwatch watch;
  run({.command = worker(kAnswer) + "; sleep 1000"}, {"1"});
  EXPECT_LT(watch.seconds(), 30);
}

TEST(RewardCommand, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(RewardCommand({.command = "cat", .workers = 0}), Error);
  EXPECT_THROW(RewardCommand({.command = "cat", .timeout_seconds = 0}), Error);
  EXPECT_THROW(RewardCommand({.command = "cat", .timeout_seconds = 1e300}), Error);
  EXPECT_THROW(RewardCommand({.command = ""}), Error);
}

TEST(RewardCommand, SaysSoWhenAWorkerPrintsBeforeItIsAsked) {
  RewardCommand command({.command = "echo loading; " + worker(kAnswer)});
  try {
    command.await_start();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find("printed 'loading' before it was asked"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace miles
