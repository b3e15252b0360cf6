// A file mapped into memory, read-only and private: reading it costs no copy and no ownership of
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace miles {

class MappedFile {
 public:
  /// Maps the whole file. Throws Error{data} naming the path and the system's reason.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The content; valid while this lives. Writing to it faults. (Another program that shortens the
  /// file meanwhile makes reading fault too: no check can prevent that.)
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }

  /// Takes the pages wholly inside [offset, offset + count) out of this process's resident memory;
  /// reading them again fetches them from the page cache or the disk. Unit: bytes.
  void drop_pages(int64_t offset, int64_t count) const;

 private:
  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;  // bytes
};

}  // namespace miles
