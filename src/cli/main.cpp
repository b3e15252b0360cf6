// miles: RL post-training of language models. This file only finds the command; the main job begins
// in cli/train.cpp.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"

namespace {

constexpr const char* kUsage =
    R"(miles — RL post-training of language models, trainer and rollout engine on one device

usage: miles COMMAND [flags]

  train      the colocated loop: generate, score, train, hand over
  generate   responses to prompts, from a model
  eval       a model's reward on a data set
  report     a run's report, its reward curve and memory peaks
  inspect    what a model directory, checkpoint or run directory holds

  miles COMMAND --help     the command's flags
  miles --version

exit codes: 2 flags, 3 files and data, 4 does not fit in memory, 5 device, 1 or 134 a bug of
ours, 130 Ctrl-C, 143 SIGTERM
)";

struct Command {
  std::string_view name;
  int (*run)(int, const char* const*);
};

constexpr Command kCommands[] = {{"train", miles::train_command},
                                 {"generate", miles::generate_command},
                                 {"eval", miles::eval_command},
                                 {"report", miles::report_command},
                                 {"inspect", miles::inspect_command}};

int run(int argc, const char* const* argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "--help" || word == "-h" || word == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (word == "--version") {
    std::puts("miles " MILES_VERSION);
    return 0;
  }
  for (const Command& command : kCommands)
    if (command.name == word) return command.run(argc - 2, argv + 2);
  if (word.empty()) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  miles::fail(miles::ErrorCode::flags,
              "no command '{}'; there are train, generate, eval, report and inspect", word);
}

}  // namespace

int main(int argc, char** argv) {
  miles::start_logging(spdlog::level::info);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is a write that fails, and says so
  try {
    const int code = run(argc, argv);
    if (std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    miles::fail(miles::ErrorCode::data, "standard output cannot be written: {}",
                std::strerror(errno));
  } catch (const miles::Error& error) {
    miles::log::error("{}", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    miles::log::error("the system has no memory left; lower --host-memory-budget");
    return static_cast<int>(miles::ErrorCode::budget);
  } catch (const std::exception& error) {
    miles::log::error("unforeseen: {}", error.what());
    return static_cast<int>(miles::ErrorCode::internal);
  }
}
