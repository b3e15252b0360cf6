// What a resumed run must share with the one that was saved, or its numbers would not go on: model,
// data, batch sizes, draws, reward, loss, optimizer and its schedule. It is written into every
// checkpoint.
//
// Not in it is what people change as a run goes on: --num-rollout (where the learning rate does not
// follow from it), lengths of prompts and responses, evaluation, saving, records, memory and
// offloading. What only rounds sums differently (how samples are packed, the device) is free too,
// but said.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actor/lr_schedule.h"
#include "model/config.h"
#include "rl/train_config.h"
#include "tensor/tensor.h"

namespace miles {

/// One entry a setting, flags under their names. What decides whether another entry is there comes
/// before it.
nlohmann::ordered_json fingerprint(const TrainConfig& config, const ModelConfig& model,
                                   const LrSchedule& schedule);

/// What decides how training's sums are rounded, on the device of that name.
nlohmann::ordered_json rounding_fingerprint(const TrainConfig& config, const std::string& device);

/// A line for each entry of `ours` that the checkpoint's run has and in which it differs.
std::vector<std::string> rounding_differences(const nlohmann::json& saved,
                                              const nlohmann::ordered_json& ours);

/// An entry that only these weights (in host memory) have, wherever they came from.
nlohmann::ordered_json reference_fingerprint(const Tensor& weights);

/// Throws Error{data} naming the first entry of `ours` in which the checkpoint's run differs, both
/// values and what to do.
void check_fingerprint(const nlohmann::json& saved, const nlohmann::ordered_json& ours,
                       const std::filesystem::path& checkpoint);

}  // namespace miles
