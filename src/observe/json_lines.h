// JSON Lines: one JSON object a line (https://jsonlines.org), the format of metrics.jsonl and
// memory.jsonl.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace miles {

/// Appends objects to a file, each as one line and one write(2), so that whatever kills the program
/// the file holds whole lines and at most one torn line at its very end. One writer per file, one
/// thread.
class JsonLines {
 public:
  enum class Open {
    fresh,   // whatever the file held is discarded
    resume,  // whole lines are kept, a torn last line is cut off
  };

  /// Makes the file when there is none; its directory must exist. Throws Error{data} naming the
  /// path.
  JsonLines(std::filesystem::path path, Open mode);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  /// Writes `object` and a newline; NaN and infinity become null, invalid UTF-8 becomes U+FFFD.
  /// Throws Error{data} naming the path and the reason (disk full, …); the file is then as it was
  /// before.
  void append(const nlohmann::ordered_json& object);

  /// Writes `object` in place of the last line. The file is replaced atomically. Throws
  /// Error{data}; the file is then unchanged.
  void replace_last(const nlohmann::ordered_json& object);

  /// Everything appended so far is on disk when it returns, whatever then becomes of the machine.
  /// Throws Error{data}.
  void sync();

  /// Drops every line whose integer field `key` is >= `first` (lines without that field stay), so
  /// that a run resumed at rollout `first` has each rollout once. The file is replaced atomically.
  /// Throws Error{data} when a line is not a JSON object; the file is then unchanged.
  void drop_from(std::string_view key, int64_t first);

 private:
  void open_for_append(int extra_flags);
  void replace_content(std::string_view content);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// The file's objects, in order. A torn last line, as a killed or still running writer leaves it,
/// is skipped. Throws Error{data} naming path and line when any other line is not a JSON object.
std::vector<nlohmann::ordered_json> read_json_lines(const std::filesystem::path& path);

}  // namespace miles
