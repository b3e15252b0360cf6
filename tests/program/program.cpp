#include "tests/program/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "tests/support/shared.h"
#include "tests/support/test_device.h"  // skips all where the GPU that is asked for is not there

namespace miles::test {
namespace {

pid_t start(const std::vector<std::string>& arguments, const std::filesystem::path& out,
            const std::filesystem::path& log, std::optional<int64_t> file_size_limit = {}) {
  std::vector<std::string> words = {MILES_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  ::dup2(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  if (file_size_limit) {
    const auto bytes = static_cast<rlim_t>(*file_size_limit);
    const rlimit limit = {bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);  // stays ignored: a write then fails, as it does on a full disk
  }
  // Tests of the program are tests of the CPU, unless a GPU is asked for.
  if (!cuda_is_wanted()) ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int count_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

}  // namespace

Outcome run_miles(const std::vector<std::string>& arguments,
                  std::optional<int64_t> file_size_limit) {
  const ScratchDir dir;
  const pid_t child = start(arguments, dir / "out", dir / "log", file_size_limit);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {exit_code_of(status), read_file(dir / "out"), read_file(dir / "log")};
}

Outcome run_and_signal(const std::vector<std::string>& arguments, const SignalAt& when) {
  const ScratchDir dir;
  const pid_t child = start(arguments, dir / "out", dir / "log");
  int status = 0;
  bool ended = false;
  for (int i = 0; i < 60000 && count_lines(when.path) < when.lines && !ended; ++i) {
    ended = ::waitpid(child, &status, WNOHANG) == child;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!ended) {
    ::kill(child, when.signal);
    for (int i = 0; when.twice && i < 10000; ++i) {
      if (read_file(dir / "log").find("a second signal") != std::string::npos) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (when.twice) ::kill(child, when.signal);
    ::waitpid(child, &status, 0);
  }
  return {exit_code_of(status), read_file(dir / "out"), read_file(dir / "log")};
}

std::vector<std::string> small_run(const std::filesystem::path& run_dir) {
  return {"train",
          "--model",
          std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
          "--init-random",
          "--prompt-data",
          "synthetic:addition?max=9&count=40",
          "--rollout-shuffle",
          "--rollout-batch-size",
          "2",
          "--n-samples-per-prompt",
          "4",
          "--num-rollout",
          "6",
          "--rollout-max-prompt-len",
          "8",
          "--rollout-max-response-len",
          "6",
          "--lr",
          "0.01",
          "--rm-type",
          "regex",
          "--rm-regex",
          "[0-9]",
          "--run-dir",
          run_dir.string()};
}

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

std::vector<nlohmann::json> json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<std::string> numbers_of(const std::filesystem::path& run_dir) {
  std::vector<std::string> numbers;
  for (const auto& line : json_lines(run_dir / "metrics.jsonl")) {
    std::ostringstream text;
    for (const char* key : {"rollout_id", "train/loss", "train/grad_norm", "rollout/raw_reward",
                            "train/train_rollout_logprob_abs_diff"})
      text << key << '=' << (line.contains(key) ? line[key].dump() : "absent") << ' ';
    numbers.push_back(text.str());
  }
  for (const auto& line : json_lines(run_dir / "samples.jsonl"))
    numbers.push_back(line["index"].dump() + line["tokens"].dump());
  return numbers;
}

}  // namespace miles::test
