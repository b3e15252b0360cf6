#include <gtest/gtest.h>

#include <set>

#include "cli/flags.h"

namespace miles {
namespace {

TEST(TrainFlags, EachIsDescribedAndEveryValueHasAName) {
  CommandLine line("train", "");
  TrainConfig config;
  BatchSizeFlags batch;
  add_train_flags(line, config, batch);
  for (const CLI::Option* option : line.app().get_options()) {
    EXPECT_GE(option->get_description().size(), 10U) << option->get_name();
    if (option->get_items_expected_max() > 0) {
      EXPECT_NE(option->get_type_name(), "") << option->get_name();
    }
  }
}

TEST(TrainFlags, WhatIsLeftOpenHasADefaultInItsDescription) {
  CommandLine line("train", "");
  TrainConfig config;
  BatchSizeFlags batch;
  add_train_flags(line, config, batch);
  // One of two must be given, or nothing happens without them.
  const std::set<std::string> open = {"num-rollout",
                                      "num-epoch",
                                      "prompt-data",
                                      "hf-checkpoint",
                                      "model",
                                      "rm-regex",
                                      "custom-rm-command",
                                      "config",
                                      "eval-prompt-data",
                                      "rollout-stop",
                                      "rollout-stop-token-ids"};
  for (const CLI::Option* option : line.app().get_options()) {
    if (option->get_items_expected_max() == 0 || !option->get_default_str().empty()) continue;
    EXPECT_TRUE(option->get_description().find("default: ") != std::string::npos ||
                open.contains(option->get_lnames().front()))
        << option->get_name();
  }
}

}  // namespace
}  // namespace miles
