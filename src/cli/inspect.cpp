#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>

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

/// Names and values in two columns under a title; printed at the end of its scope, so that what is
/// known is shown also when something is wrong.
class Listing {
 public:
  explicit Listing(std::string title) : title_(std::move(title)) {}
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;

  ~Listing() {
    size_t width = 0;
    for (const auto& [name, value] : rows_) width = std::max(width, name.size());
    std::cout << title_ << '\n';
    for (const auto& [name, value] : rows_)
      std::cout << fmt::format("  {:<{}}  {}\n", name, width, value);
    std::cout.flush();
  }

  void add(const std::string& name, const std::string& value) { rows_.emplace_back(name, value); }

 private:
  std::string title_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

void inspect_model(const fs::path& path) {
  const ModelConfig config = read_hf_config(path);
  const ParamLayout layout(config);
  Listing listing(path.string() + ": a Hugging Face model");
  listing.add("architecture", config.model_type);
  listing.add("parameters", fmt::format("{} ({:.2f} M)", layout.parameters(),
                                        static_cast<double>(layout.parameters()) / 1e6));
  listing.add("blocks", std::to_string(config.num_hidden_layers));
  listing.add("hidden", std::to_string(config.hidden_size));
  listing.add("heads",
              fmt::format("{} queries, {} keys/values, {} each", config.num_attention_heads,
                          config.num_key_value_heads, config.head_dim));
  listing.add("intermediate", std::to_string(config.intermediate_size));
  listing.add("vocabulary", fmt::format("{}, head {}", config.vocab_size,
                                        config.tie_word_embeddings ? "tied" : "untied"));
  listing.add("context", std::to_string(config.max_position_embeddings));
  listing.add("dtype", std::string(name_of(config.dtype)));
  const WeightFiles files(path);
  int64_t bytes = 0;
  for (const std::string& name : files.names()) bytes += files.file_of(name).find(name)->bytes;
  listing.add("weights", fmt::format("{} tensors, {}", files.names().size(), format_bytes(bytes)));
  for (const ParamSpec& param : layout.params())
    if (files.contains(param.name))
      files.check_shape(param.name, param.shape);
    else
      fail(ErrorCode::data, "{}: {} is missing", path.string(), param.name);
  listing.add("check", "every tensor is there, in its shape");
}

void inspect_checkpoint(const fs::path& path) {
  const RunState state = read_run_state(path);
  {
    Listing listing(path.string() + ": a checkpoint");
    listing.add("run", state.run_id);
    listing.add("rollout", std::to_string(state.rollout_id));
    for (const auto& [key, value] : state.data.items()) listing.add(key, value.dump());
    const SafetensorsFile file(path / "trainer.safetensors");
    for (const auto& [key, value] : file.metadata()) listing.add(key, value);
    listing.add("trainer.safetensors",
                format_bytes(static_cast<int64_t>(fs::file_size(file.path()))));
  }
  inspect_model(path / "hf");
}

void inspect_run(const fs::path& path) {
  Listing listing(path.string() + ": a run");
  const RunInfo info = read_run_info(path);
  listing.add("run", info.run_id);
  listing.add("device", info.device);
  const auto metrics = read_json_lines(path / "metrics.jsonl");
  const auto rollouts = std::ranges::count_if(  // an evaluation before training has a line, too
      metrics, [](const auto& row) { return row.value("rollout_id", int64_t{0}) >= 0; });
  listing.add("rollouts", std::to_string(rollouts));
  if (!metrics.empty())
    for (const auto& [name, value] : metrics.back().items()) listing.add(name, value.dump());
  std::map<std::string, int64_t> files;  // bytes by name
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file())
      files[entry.path().filename().string()] = static_cast<int64_t>(entry.file_size());
  for (const auto& [name, bytes] : files) listing.add(name, format_bytes(bytes));
}

}  // namespace

int inspect_command(int argc, const char* const* argv) {
  CommandLine line("inspect", "What a model directory, checkpoint or run directory holds.");
  std::string given;
  line.app().add_option("PATH", given, "directory")->required();
  if (!line.parse(argc, argv)) return 0;
  const fs::path path = given;
  if (!fs::is_directory(path))
    fail(ErrorCode::data, "{}: {}", given,
         fs::exists(path) ? "a file; pass the directory that it is in" : "no such directory");
  if (fs::exists(path / "run_state.json")) {
    inspect_checkpoint(path);
  } else if (fs::exists(path / "metrics.jsonl")) {
    inspect_run(path);
  } else if (fs::exists(path / "config.json")) {
    inspect_model(path);
  } else if (const auto checkpoints = list_checkpoints(path); !checkpoints.empty()) {
    std::cout << fmt::format("{}: {}\n", given,
                             format_count(std::ssize(checkpoints), "complete checkpoint"));
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
