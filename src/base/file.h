// Files: read whole, written beside and renamed, so that a reader sees the old content or the new
// and never half of either, whatever kills the writer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace miles {

/// The whole content. Throws Error{data} naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

/// Writes `content` to a neighbour, syncs it to disk, renames it over `path`.
/// Throws Error{data} (disk full, no permission, …); then `path` is as it was.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Creates the directory and its parents. Throws Error{data} naming `path`.
void make_directories(const std::filesystem::path& path);

/// A directory that this process alone writes to, as long as the object lives: it is made if need
/// be, and locked. The lock ends with the process, however that ends, and is nobody's where the
/// file system has none.
class ClaimedDirectory {
 public:
  /// `flag`: that named it, for messages. Throws Error{data} when it cannot be made or written to,
  /// or another process has claimed it.
  ClaimedDirectory(const std::filesystem::path& path, std::string_view flag);
  ~ClaimedDirectory();
  ClaimedDirectory(const ClaimedDirectory&) = delete;
  ClaimedDirectory& operator=(const ClaimedDirectory&) = delete;

 private:
  int fd_;
};

/// Syncs a file's or a directory's content to disk. Throws Error{data}.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace miles
