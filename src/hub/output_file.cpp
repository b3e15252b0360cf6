#include "hub/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"

namespace miles {
namespace {

/// Reserves the file's blocks; returns the error when the disk cannot hold it, else 0.
int reserve(int fd, int64_t bytes) {
  if (bytes == 0 || ::fallocate(fd, 0, 0, bytes) == 0) return 0;
  // Anything else says that this file system cannot reserve, not that it cannot write.
  return errno == ENOSPC || errno == EFBIG || errno == EDQUOT ? errno : 0;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, int64_t bytes)
    : path_(std::move(path)), beside_(path_.string() + ".tmp"), announced_(bytes) {
  fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) refuse(errno);
  if (const int error = reserve(fd_, bytes); error != 0) {
    ::close(fd_);
    ::unlink(beside_.c_str());
    refuse(error);
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

void OutputFile::refuse(int error) const {
  fail(ErrorCode::data, "{}: cannot write {}: {}", path_.string(), format_bytes(announced_),
       std::strerror(error));
}

void OutputFile::append(std::span<const std::byte> bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  MILES_CHECK(written_ <= announced_, "{}: {} bytes of {}", path_.string(), written_, announced_);
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::replace(int64_t offset, std::span<const std::byte> bytes) {
  MILES_CHECK(offset >= 0 && offset + std::ssize(bytes) <= written_, "{}: bytes {} to {} of {}",
              path_.string(), offset, offset + std::ssize(bytes), written_);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void OutputFile::commit() {
  MILES_CHECK(written_ == announced_, "{}: {} bytes of {}", path_.string(), written_, announced_);
  if (::fsync(fd_) != 0) refuse(errno);
  // Network file systems report a failed write only here.
  if (::close(std::exchange(fd_, -1)) != 0) refuse(errno);
  std::error_code error;
  std::filesystem::rename(beside_, path_, error);
  if (error) refuse(error.value());
  beside_.clear();
  sync_to_disk(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace miles
