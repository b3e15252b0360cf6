#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"

namespace miles {
namespace {

/// A file descriptor, closed at the end of its scope.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ < 0) fail(ErrorCode::data, "{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  std::string content;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
    if (n == 0) return content;
    if (n < 0) {
      if (errno == EINTR) continue;
      fail(ErrorCode::data, "{}: cannot read: {}", path.string(), std::strerror(errno));
    }
    content.append(chunk, static_cast<size_t>(n));
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path beside = path.string() + ".tmp";
  try {
    const Descriptor file(beside, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = ::write(file.get(), content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(ErrorCode::data, "{}: cannot write: {}", path.string(), std::strerror(errno));
      done += static_cast<size_t>(n);
    }
    if (::fsync(file.get()) != 0)
      fail(ErrorCode::data, "{}: cannot write: {}", path.string(), std::strerror(errno));
    std::filesystem::rename(beside, path);
    sync_to_disk(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
  } catch (const std::filesystem::filesystem_error& error) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    fail(ErrorCode::data, "{}: cannot write: {}", path.string(), error.code().message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    throw;
  }
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    fail(ErrorCode::data, "{}: cannot create the directory: {}", path.string(), error.message());
}

ClaimedDirectory::ClaimedDirectory(const std::filesystem::path& path, std::string_view flag) {
  make_directories(path);
  if (::access(path.c_str(), W_OK | X_OK) != 0)
    fail(ErrorCode::data, "{} {}: cannot write there: {}", flag, path.string(),
         std::strerror(errno));
  fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0)
    fail(ErrorCode::data, "{} {}: cannot open: {}", flag, path.string(), std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  fail(ErrorCode::data,
       "{} {}: another run that has not ended writes there; wait for its end, or pass another "
       "directory",
       flag, path.string());
}

ClaimedDirectory::~ClaimedDirectory() {
  ::close(fd_);
}

void sync_to_disk(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (::fsync(file.get()) != 0)
    fail(ErrorCode::data, "{}: cannot sync to disk: {}", path.string(), std::strerror(errno));
}

}  // namespace miles
