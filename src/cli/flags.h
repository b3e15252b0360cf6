// Every flag, once, by the part of the program it belongs to. Names and defaults are Miles' where
// it has the flag, SGLang's for the engine.
#pragma once

#include "cli/command_line.h"
#include "rl/train_config.h"

namespace miles {

inline constexpr const char* kDataGroup = "Data and batches";

void add_model_flags(CommandLine& line, ModelOptions& options);
void add_device_flags(CommandLine& line, DeviceConfig& config);
void add_engine_flags(CommandLine& line, EngineConfig& config);
/// The keys of a row of data.
void add_row_flags(CommandLine& line, DataOptions& options);
void add_reward_flags(CommandLine& line, RewardConfig& config);
/// The evaluation sets and how they are sampled; not when.
void add_eval_set_flags(CommandLine& line, EvalConfig& config);

/// Those --rollout-* that an evaluation has, too.
void add_any_rollout_flags(CommandLine& line, RolloutConfig& config);

/// All of `miles train`. finish_train_flags() works out what the flags leave open once they are
/// parsed.
void add_train_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch);
/// Throws Error{flags}.
void finish_train_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch);

}  // namespace miles
