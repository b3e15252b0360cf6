#include <filesystem>
#include <iostream>

#include "base/file.h"
#include "base/units.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "hub/weight_files.h"
#include "model/hf_config.h"
#include "model/layout.h"
#include "observe/json_lines.h"
#include "observe/run_info.h"
#include "rl/checkpoint.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

void print(const std::string& name, const std::string& value) {
  std::cout << fmt::format("  {:<24}{}\n", name, value);
}

void inspect_model(const fs::path& path) {
  const ModelConfig config = read_hf_config(path);
  const ParamLayout layout(config);
  std::cout << fmt::format("{}: a Hugging Face model\n", path.string());
  print("architecture", config.model_type);
  print("parameters", fmt::format("{} ({:.2f} M)", layout.parameters(),
                                  static_cast<double>(layout.parameters()) / 1e6));
  print("blocks", std::to_string(config.num_hidden_layers));
  print("hidden", std::to_string(config.hidden_size));
  print("heads", fmt::format("{} queries, {} keys/values, {} each", config.num_attention_heads,
                             config.num_key_value_heads, config.head_dim));
  print("intermediate", std::to_string(config.intermediate_size));
  print("vocabulary", fmt::format("{}, head {}", config.vocab_size,
                                  config.tie_word_embeddings ? "tied" : "untied"));
  print("context", std::to_string(config.max_position_embeddings));
  print("dtype", std::string(name_of(config.dtype)));
  const WeightFiles files(path);
  int64_t bytes = 0;
  for (const std::string& name : files.names()) bytes += files.file_of(name).find(name)->bytes;
  print("weights", fmt::format("{} tensors, {}", files.names().size(), format_bytes(bytes)));
  for (const ParamSpec& param : layout.params())
    if (files.contains(param.name))
      files.check_shape(param.name, param.shape);
    else
      fail(ErrorCode::data, "{}: {} is missing", path.string(), param.name);
  print("check", "every tensor is there, in its shape");
}

void inspect_checkpoint(const fs::path& path) {
  const RunState state = read_run_state(path);
  std::cout << fmt::format("{}: a checkpoint\n", path.string());
  print("run", state.run_id);
  print("rollout", std::to_string(state.rollout_id));
  for (const auto& [key, value] : state.data.items()) print(key, value.dump());
  const SafetensorsFile file(path / "trainer.safetensors");
  for (const auto& [key, value] : file.metadata()) print(key, value);
  print("trainer.safetensors", format_bytes(static_cast<int64_t>(fs::file_size(file.path()))));
  inspect_model(path / "hf");
}

void inspect_run(const fs::path& path) {
  std::cout << fmt::format("{}: a run\n", path.string());
  const RunInfo info = read_run_info(path);
  print("run", info.run_id);
  print("device", info.device);
  const auto metrics = read_json_lines(path / "metrics.jsonl");
  print("rollouts", std::to_string(metrics.size()));
  if (!metrics.empty())
    for (const auto& [name, value] : metrics.back().items()) print(name, value.dump());
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file())
      print(entry.path().filename().string(),
            format_bytes(static_cast<int64_t>(entry.file_size())));
}

}  // namespace

int inspect_command(int argc, const char* const* argv) {
  CommandLine line("inspect", "What a model directory, checkpoint or run directory holds.");
  std::string given;
  line.app().add_option("PATH", given, "directory")->required();
  if (!line.parse(argc, argv)) return 0;
  const fs::path path = given;
  if (!fs::is_directory(path)) fail(ErrorCode::data, "{}: no such directory", given);
  if (fs::exists(path / "run_state.json")) {
    inspect_checkpoint(path);
  } else if (fs::exists(path / "metrics.jsonl")) {
    inspect_run(path);
  } else if (fs::exists(path / "config.json")) {
    inspect_model(path);
  } else if (const auto checkpoints = list_checkpoints(path); !checkpoints.empty()) {
    std::cout << fmt::format("{}: {} complete checkpoints\n", given, checkpoints.size());
    inspect_checkpoint(checkpoints.back());
  } else {
    fail(ErrorCode::data,
         "{}: neither a model (config.json), a checkpoint (run_state.json), a run (metrics.jsonl), "
         "nor a "
         "directory of checkpoints",
         given);
  }
  return 0;
}

}  // namespace miles
