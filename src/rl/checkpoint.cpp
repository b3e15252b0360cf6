#include "rl/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "hub/json_file.h"
#include "model/hf_config.h"
#include "model/weights_io.h"
#include "text/byte_tokenizer.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "iter_";
constexpr const char* kState = "run_state.json";

/// The rollout's number in "iter_0000012", or nothing.
std::optional<int64_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(5);
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

bool is_complete(const fs::path& path) {
  return fs::exists(path / kState);
}

/// The model's own tokenizer files, or the byte tokenizer written out.
void save_tokenizer(const ModelSource& source, const fs::path& to) {
  const auto from = source.tokenizer_directory();
  if (!from) {
    write_file_atomically(to / "tokenizer.json", byte_tokenizer_json());
    write_file_atomically(to / "tokenizer_config.json", byte_tokenizer_config_json());
    return;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "chat_template.jinja"})
    if (fs::exists(*from / name)) write_file_atomically(to / name, read_file(*from / name));
}

/// Gives `beside` the name `final_path`. One that has the name already is exchanged for it in one
/// step, and goes last: at no moment is there none.
void put_in_place(const fs::path& beside, const fs::path& final_path) {
  if (!fs::exists(final_path)) {
    fs::rename(beside, final_path);
    return;
  }
  if (::renameat2(AT_FDCWD, beside.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) {
    sync_to_disk(final_path.parent_path());
    fs::remove_all(beside);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail(ErrorCode::data, "{}: cannot replace: {}", final_path.string(), std::strerror(errno));
  // A file system that cannot exchange: the old one steps aside, and comes back if the new one
  // cannot come.
  const fs::path aside = final_path.parent_path() / (".old-" + final_path.filename().string());
  fs::remove_all(aside);
  fs::rename(final_path, aside);
  std::error_code error;
  fs::rename(beside, final_path, error);
  if (error) {
    fs::rename(aside, final_path);
    fail(ErrorCode::data, "{}: cannot replace: {}", final_path.string(), error.message());
  }
  fs::remove_all(aside);
}

/// Every file and directory below `path`, and itself.
void sync_tree(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) sync_to_disk(entry.path());
  sync_to_disk(path);
}

}  // namespace

void CheckpointWriter::save(ActorModel& actor, const RunState& state) const {
  make_directories(directory);
  const fs::path final_path = directory / fmt::format("{}{:07}", kPrefix, state.rollout_id);
  const fs::path beside = directory / fmt::format(".writing-{}{:07}", kPrefix, state.rollout_id);
  try {
    fs::remove_all(beside);
    make_directories(beside / "hf");
    actor.save_state(beside);
    {
      const Region staging = actor.commit_weights_staging();
      save_hf_model(beside / "hf", source.config(), layout, actor.weights_on_host(staging));
    }
    save_tokenizer(source, beside / "hf");
    const nlohmann::json content = {
        {"rollout_id", state.rollout_id}, {"data", state.data}, {"fingerprint", state.fingerprint}};
    write_file_atomically(beside / kState, content.dump(2) + "\n");
    sync_tree(beside);
    put_in_place(beside, final_path);
    sync_to_disk(directory);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    fail(ErrorCode::data, "{}: cannot save: {}", final_path.string(), error.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  write_file_atomically(directory / "latest_checkpointed_iteration.txt",
                        std::to_string(state.rollout_id) + "\n");
  // Only this run's past goes: what another run left under later numbers is not ours to remove.
  std::vector<fs::path> ours = list_checkpoints(directory);
  std::erase_if(ours, [&](const fs::path& path) { return *number_of(path) > state.rollout_id; });
  const auto count = static_cast<int64_t>(ours.size());
  for (int64_t i = 0; total_limit > 0 && i < count - total_limit; ++i) {
    std::error_code error;
    fs::remove_all(ours[static_cast<size_t>(i)], error);
    if (error)
      log::warn("{}: cannot remove: {}", ours[static_cast<size_t>(i)].string(), error.message());
  }
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (number_of(entry.path()) && is_complete(entry.path())) found.push_back(entry.path());
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *number_of(a) < *number_of(b); });
  return found;
}

fs::path find_checkpoint(const fs::path& directory) {
  if (is_complete(directory)) return directory;
  const auto complete = list_checkpoints(directory);
  if (complete.empty())
    fail(ErrorCode::data,
         "--load {}: no complete checkpoint there (a directory iter_… with a {}); leave out --load "
         "to start afresh",
         directory.string(), kState);
  return complete.back();
}

RunState read_run_state(const fs::path& checkpoint) {
  const nlohmann::json content = read_json_object(checkpoint / kState);
  const JsonFields fields(content, (checkpoint / kState).string());
  RunState state;
  state.rollout_id = fields.integer("rollout_id");
  for (const char* key : {"data", "fingerprint"})
    if (!content.contains(key) || !content[key].is_object())
      fail(ErrorCode::data, "{}: '{}' is missing", (checkpoint / kState).string(), key);
  state.data = content["data"];
  state.fingerprint = content["fingerprint"];
  return state;
}

void check_fingerprint(const nlohmann::json& saved, const nlohmann::json& ours,
                       const fs::path& checkpoint) {
  for (const auto& [key, value] : ours.items()) {
    const auto other = saved.find(key);
    if (other == saved.end() || *other != value)
      fail(ErrorCode::data, "--load {}: {} was {} when it was saved and is {} now",
           checkpoint.string(), key, other == saved.end() ? "absent" : other->dump(), value.dump());
  }
}

}  // namespace miles
