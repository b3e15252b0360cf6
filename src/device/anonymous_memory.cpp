#include "device/anonymous_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace miles {

int64_t AnonymousMemory::granularity() const {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  return page;
}

std::byte* AnonymousMemory::reserve(int64_t bytes) {
  void* const base = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    fail(ErrorCode::device, "cannot reserve {} bytes of address space: {}", bytes,
         std::strerror(errno));
  return static_cast<std::byte*>(base);
}

void AnonymousMemory::unreserve(std::byte* base, int64_t bytes) noexcept {
  ::munmap(base, static_cast<size_t>(bytes));
}

void AnonymousMemory::commit(std::byte* base, int64_t bytes) {
  if (::mprotect(base, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0)
    fail(ErrorCode::device, "the system refused {} bytes of memory: {}", bytes,
         std::strerror(errno));
  // Committed is meant to be used: pages of 2 MiB, where the system has them, save most of the
  // faults each time that memory comes back. A hint: refusal does no harm.
  ::madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

void AnonymousMemory::decommit(std::byte* base, int64_t bytes) noexcept {
  ::madvise(base, static_cast<size_t>(bytes), MADV_DONTNEED);
  ::mprotect(base, static_cast<size_t>(bytes), PROT_NONE);
}

}  // namespace miles
