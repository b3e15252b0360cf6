// A file written piece by piece beside its final place and renamed when complete: readers see the
// old file or the whole new one. For content that is already in memory: write_file_atomically
// (base/file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace miles {

class OutputFile {
 public:
  /// Opens `path`.tmp and reserves `bytes` on the disk where its file system can, so that a full
  /// disk is known at once. Throws Error{data} naming `path`.
  OutputFile(std::filesystem::path path, int64_t bytes);
  /// Removes the neighbour unless commit() has renamed it.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Appends. Throws Error{data} (disk full, quota, …).
  void append(std::span<const std::byte> bytes);
  /// Puts `bytes` in place of as many that were appended, from byte `offset` on. Throws Error{data}.
  void replace(int64_t offset, std::span<const std::byte> bytes);
  /// Syncs to disk, renames over `path`, syncs the directory. Throws Error{data}; `path` is then as
  /// it was. Exactly the bytes announced must have been appended.
  void commit();

 private:
  [[noreturn]] void refuse(int error) const;

  std::filesystem::path path_;
  std::filesystem::path beside_;  // path_ + ".tmp"; empty once renamed
  int64_t announced_ = 0;         // bytes
  int64_t written_ = 0;           // bytes
  int fd_ = -1;
};

}  // namespace miles
