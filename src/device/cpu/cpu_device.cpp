#include <fmt/format.h>
#include <omp.h>

#include <fstream>

#include "base/units.h"
#include "device/anonymous_memory.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace miles {
namespace {

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
      fmt::format("{}, {}", processor_name(), format_count(omp_get_max_threads(), "thread"));
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace miles
