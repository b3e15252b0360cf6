#include "rl/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/shell.h"
#include "hub/checksum.h"
#include "hub/json_file.h"
#include "model/hf_config.h"
#include "model/weights_io.h"
#include "text/byte_tokenizer.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "iter_";
constexpr const char* kState = "run_state.json";
constexpr const char* kStateChecksum = "checksum";  // its field
// What a checkpoint's directory is called while it is not, or no longer, one under its own name.
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kRemoving = ".removing-";
constexpr std::string_view kOld = ".old-";

/// "DIR/iter_0000012" as "DIR/.old-iter_0000012".
fs::path marked(const fs::path& path, std::string_view mark) {
  return path.parent_path() / (std::string(mark) + path.filename().string());
}

/// The rollout's number in "iter_0000012", or nothing.
std::optional<int64_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
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

/// The name that a marked checkpoint had or was to have; nothing when `path` is not marked so.
std::optional<fs::path> unmarked(const fs::path& path, std::string_view mark) {
  const std::string name = path.filename().string();
  if (!name.starts_with(mark)) return std::nullopt;
  const fs::path own = path.parent_path() / name.substr(mark.size());
  return number_of(own) ? std::optional(own) : std::nullopt;
}

bool is_complete(const fs::path& path) {
  return fs::exists(path / kState);
}

/// Complete checkpoints by number. An old one that had stepped aside for a new one which never came
/// still counts.
std::map<int64_t, fs::path> complete_checkpoints(const fs::path& directory) {
  std::map<int64_t, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const fs::path& path = entry.path();
    const fs::path own = unmarked(path, kOld).value_or(path);
    const auto number = number_of(own);
    if (number && is_complete(path) && (own == path || !fs::exists(own)))
      found.emplace(*number, path);
  }
  return found;
}

/// Under its own name a checkpoint is complete or absent, so it loses the name first. What cannot
/// be removed is only a pity.
void discard(const fs::path& path) {
  std::error_code error;
  const fs::path removing = number_of(path) ? marked(path, kRemoving) : path;
  if (removing != path) fs::rename(path, removing, error);
  if (!error) fs::remove_all(removing, error);
  if (error) log::warn("{}: cannot remove: {}", removing.string(), error.message());
}

/// What a kill left of an earlier save or removal goes; what had stepped aside gets its name back.
void sweep(const fs::path& directory) {
  std::vector<fs::path> entries;  // the directory changes below
  for (const auto& entry : fs::directory_iterator(directory)) entries.push_back(entry.path());
  for (const fs::path& path : entries) {
    const auto old = unmarked(path, kOld);
    if (old && !fs::exists(*old))
      fs::rename(path, *old);
    else if (old || unmarked(path, kWriting) || unmarked(path, kRemoving))
      discard(path);
  }
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
    discard(beside);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail(ErrorCode::data, "{}: cannot replace: {}", final_path.string(), std::strerror(errno));
  // A file system that cannot exchange: the old one steps aside, and comes back if the new one
  // cannot come. After a kill in between, list_checkpoints() knows it under this name.
  const fs::path aside = marked(final_path, kOld);
  fs::rename(final_path, aside);
  std::error_code error;
  fs::rename(beside, final_path, error);
  if (error) {
    fs::rename(aside, final_path);
    fail(ErrorCode::data, "{}: cannot replace: {}", final_path.string(), error.message());
  }
  discard(aside);
}

/// Of the run that wrote the checkpoint; nothing where that cannot be read.
std::optional<std::string> run_id_of(const fs::path& checkpoint) {
  try {
    const nlohmann::json content = read_json_object(checkpoint / kState);
    return JsonFields(content, (checkpoint / kState).string()).find_text("run_id").value_or("");
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Of the content without its own field.
std::string checksum_of(nlohmann::json content) {
  content.erase(kStateChecksum);
  const std::string text = content.dump();
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.hex();
}

/// Every file and directory below `path`, and itself.
void sync_tree(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) sync_to_disk(entry.path());
  sync_to_disk(path);
}

}  // namespace

fs::path CheckpointWriter::save(ActorModel& actor, const RunState& state) const {
  make_directories(directory);
  const fs::path final_path = directory / fmt::format("{}{:07}", kPrefix, state.rollout_id);
  const fs::path beside = marked(final_path, kWriting);
  try {
    sweep(directory);
    make_directories(beside / "hf");
    actor.save_state(beside);
    {
      const Region staging = actor.commit_save_staging();
      save_hf_model(beside / "hf", source.config(), layout, [&](int64_t first, int64_t count) {
        return actor.read_weights(staging, first, count);
      });
    }
    save_tokenizer(source, beside / "hf");
    nlohmann::json content = {{"run_id", state.run_id},
                              {"rollout_id", state.rollout_id},
                              {"data", state.data},
                              {"fingerprint", state.fingerprint}};
    content[kStateChecksum] = checksum_of(content);
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
  // There are none of later rollouts, nor of other runs: check_save_directory().
  const std::vector<fs::path> all = list_checkpoints(directory);
  const auto count = static_cast<int64_t>(all.size());
  for (int64_t i = 0; total_limit > 0 && i < count - total_limit; ++i)
    discard(all[static_cast<size_t>(i)]);
  return final_path;
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const auto& [number, path] : complete_checkpoints(directory)) paths.push_back(path);
  return paths;
}

void check_save_directory(const fs::path& directory, const SavingRun& run) {
  const auto complete = complete_checkpoints(directory);
  if (!complete.empty() && complete.rbegin()->first >= run.first_rollout)
    fail(ErrorCode::flags,
         "--save {}: there is {} already, and this run begins at rollout {}: it would write over "
         "checkpoints that are not its own; pass --load {} to go on from the newest, or another "
         "--save directory",
         directory.string(), complete.rbegin()->second.filename().string(), run.first_rollout,
         shell_word(directory.string()));
  for (const auto& [number, path] : complete) {
    const auto run_id = run_id_of(path);
    if (run_id == run.run_id) continue;
    fail(ErrorCode::flags,
         "--save {}: {} there {}: it would be taken for one of this run's, and removed with "
         "--save-total-limit; move {} away, or pass another --save directory",
         directory.string(), path.filename().string(),
         run_id ? "is of another run" : fmt::format("has a {} that cannot be read", kState),
         shell_word(path.string()));
  }
}

fs::path find_checkpoint(const fs::path& directory) {
  if (is_complete(directory)) return directory;
  if (!fs::exists(directory))
    fail(ErrorCode::data, "--load {}: no such directory; leave out --load to start afresh",
         directory.string());
  const auto complete = list_checkpoints(directory);
  if (complete.empty())
    fail(ErrorCode::data,
         "--load {}: no complete checkpoint there (a directory iter_… with a {}); leave out --load "
         "to start afresh",
         directory.string(), kState);
  return complete.back();
}

void reading(const fs::path& checkpoint, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    // As a shell completes it, its name ends with a slash.
    const fs::path path = checkpoint.has_filename() ? checkpoint : checkpoint.parent_path();
    const auto all = complete_checkpoints(path.has_parent_path() ? path.parent_path() : ".");
    const auto own = all.find(number_of(path).value_or(-1));
    if (own == all.end()) throw;  // it lies by itself
    // A run that goes on from an earlier one must not find this one where it saves.
    const std::string away = shell_word(path.string());
    if (own == all.begin())
      fail(
          ErrorCode::data,
          "{}. There is no checkpoint before it: move {} away and leave out --load to start afresh",
          error.what(), away);
    fail(ErrorCode::data, "{}. Move {} away and go on from the one before it with --load {}",
         error.what(), away, shell_word(std::prev(own)->second.string()));
  }
}

RunState read_run_state(const fs::path& checkpoint) {
  RunState state;
  reading(checkpoint, [&] {
    const nlohmann::json content = read_json_object(checkpoint / kState);
    const JsonFields fields(content, (checkpoint / kState).string());
    const std::string is = checksum_of(content), was = fields.text(kStateChecksum);
    if (is != was)
      fail(ErrorCode::data, "{}: it is damaged: its checksum is {}, and was {} when it was written",
           (checkpoint / kState).string(), is, was);
    state.run_id = fields.find_text("run_id").value_or("");
    state.rollout_id = fields.integer("rollout_id");
    for (const char* key : {"data", "fingerprint"})
      if (!content.contains(key) || !content[key].is_object())
        fail(ErrorCode::data, "{}: '{}' is missing", (checkpoint / kState).string(), key);
    state.data = content["data"];
    state.fingerprint = content["fingerprint"];
  });
  return state;
}

}  // namespace miles
