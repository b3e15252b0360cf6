// Running the program as a user does.
#pragma once

#include <signal.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace miles::test {

struct Outcome {
  int exit_code = 0;  // 128 + signal when it was killed
  std::string out;    // stdout
  std::string log;    // stderr
};

/// Runs `miles ARGUMENTS…` to its end. With `file_size_limit` (bytes) no file may grow beyond it: a
/// full disk without a disk.
Outcome run_miles(const std::vector<std::string>& arguments,
                  std::optional<int64_t> file_size_limit = {});

/// When to send which signal to a program that runs.
struct SignalAt {
  std::filesystem::path path;  // as soon as this file …
  int lines = 1;               // … has at least so many lines
  int signal = SIGKILL;
  bool twice = false;  // again, once the program has said that it knows
};

/// Starts it, sends it a signal, and waits for its end.
Outcome run_and_signal(const std::vector<std::string>& arguments, const SignalAt& when);

/// Flags of a small training run on sums with random weights: six rollouts of 2 prompts × 4
/// samples.
std::vector<std::string> small_run(const std::filesystem::path& run_dir);

/// `base` with `more` behind it.
std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more);

/// The lines of a .jsonl file.
std::vector<nlohmann::json> json_lines(const std::filesystem::path& path);

/// What must be equal between two runs: per rollout loss, gradient norm, reward and difference of
/// log-probs, and every sample's tokens.
std::vector<std::string> numbers_of(const std::filesystem::path& run_dir);

}  // namespace miles::test
