#include "hub/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace miles {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto refuse = [this](int error) {
    fail(ErrorCode::data, "{}: cannot read: {}", path_.string(), std::strerror(error));
  };
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(errno);
  struct stat status {};
  int error = 0;
  if (::fstat(fd, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  } else if (status.st_size > 0) {  // an empty mapping is not allowed; an empty span is
    size_ = status.st_size;
    void* mapped = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED)
      error = errno;
    else
      data_ = static_cast<std::byte*>(mapped);
  }
  ::close(fd);
  if (error != 0) refuse(error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

void MappedFile::drop_pages(int64_t offset, int64_t count) const {
  MILES_CHECK(offset >= 0 && count >= 0 && offset + count <= size_, "{}+{} of {} bytes", offset,
              count, size_);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t first = (offset + page - 1) / page * page;
  const int64_t last = (offset + count) / page * page;
  // A hint: when the system declines it, the pages merely stay.
  if (first < last) ::madvise(data_ + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

}  // namespace miles
