#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace miles {
namespace {

/// Anonymous mappings. Reserved ranges are inaccessible, so that a use after decommit faults at
/// once.
class AnonymousMemory : public AddressSpace {
 public:
  int64_t granularity() const override { return page_; }

  std::byte* reserve(int64_t bytes) override {
    void* base = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      fail(ErrorCode::device, "cannot reserve {} bytes of address space: {}", bytes,
           std::strerror(errno));
    return static_cast<std::byte*>(base);
  }

  void unreserve(std::byte* base, int64_t bytes) noexcept override {
    ::munmap(base, static_cast<size_t>(bytes));
  }

  void commit(std::byte* base, int64_t bytes) override {
    if (::mprotect(base, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0)
      fail(ErrorCode::device, "the system refused {} bytes of memory: {}", bytes,
           std::strerror(errno));
    // Committed is meant to be used: pages of 2 MiB, where the system has them, save most of the
    // faults each time that memory comes back. A hint: refusal does no harm.
    ::madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }

  void decommit(std::byte* base, int64_t bytes) noexcept override {
    ::madvise(base, static_cast<size_t>(bytes), MADV_DONTNEED);
    ::mprotect(base, static_cast<size_t>(bytes), PROT_NONE);
  }

 private:
  int64_t page_ = ::sysconf(_SC_PAGESIZE);
};

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "CPU";
}

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return name_; }
  int64_t capacity_bytes() const override { return host_capacity_bytes(); }
  AddressSpace& memory() override { return memory_; }
  AddressSpace& host_memory() override { return memory_; }
  std::unique_ptr<Stream> make_stream(StreamUse use) override {
    if (use == StreamUse::compute) return std::make_unique<InlineStream>();
    return std::make_unique<ThreadStream>();
  }

 private:
  AnonymousMemory memory_;
  std::string name_ =
      fmt::format("{}, {} threads", processor_name(), std::thread::hardware_concurrency());
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace miles
