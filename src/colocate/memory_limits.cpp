#include "colocate/memory_limits.h"

#include <fmt/format.h>

#include "base/units.h"

namespace miles {
namespace {

std::optional<Shortage> of_what_is_there(const MemoryPlan& plan, const Device& device) {
  const int64_t room = device_room(device, plan.host_peak);
  if (plan.device_peak <= room) return std::nullopt;
  Shortage lack{.place = Place::device, .bytes = plan.device_peak - room};
  const std::string need = format_bytes(plan.device_peak),
                    capacity = format_bytes(device.capacity_bytes());
  if (device.kind() == DeviceKind::cpu) {
    lack.text = fmt::format(
        "the run needs {} for the device and {} for the host, which with --device cpu are both the "
        "machine's {}",
        need, format_bytes(plan.host_peak), capacity);
    return lack;
  }
  lack.text = fmt::format(
      "the run needs {} of device memory, but of the {} of {} the driver, libraries and other "
      "processes (which you may end) hold {}, and {} is left for driver and libraries to grow",
      need, capacity, device.name(), format_bytes(device.foreign_bytes()),
      format_bytes(driver_growth(device)));
  lack.largest = largest_tags(plan.device_at_peak);
  return lack;
}

std::optional<Shortage> of_a_budget(Place place, const MemoryPlan& plan, int64_t budget) {
  const bool device = place == Place::device;
  const int64_t need = device ? plan.device_peak : plan.host_peak;
  if (need <= budget) return std::nullopt;
  return Shortage{
      .place = place,
      .bytes = need - budget,
      .text = fmt::format("the run needs {} ({} bytes) of {} memory, the budget is {} ({} bytes)",
                          format_bytes(need), need, name_of(place), format_bytes(budget), budget),
      .largest = largest_tags(device ? plan.device_at_peak : plan.host_at_peak)};
}

}  // namespace

int64_t driver_growth(const Device& device) {
  return device.kind() == DeviceKind::cuda ? int64_t{512} << 20 : 0;
}

int64_t device_room(const Device& device, int64_t host_peak) {
  const int64_t host = device.kind() == DeviceKind::cpu ? host_peak : 0;
  return device.capacity_bytes() - device.foreign_bytes() - driver_growth(device) - host;
}

std::optional<Shortage> shortage(const MemoryPlan& plan, const MemoryBudget& budget,
                                 const Device& device) {
  if (auto lack = of_what_is_there(plan, device)) return lack;
  if (auto lack = of_a_budget(Place::device, plan, budget.device_bytes)) return lack;
  return of_a_budget(Place::host, plan, budget.host_bytes);
}

std::string does_not_fit(const Shortage& lack) {
  return fmt::format("does not fit: {}{}{}", lack.text,
                     lack.largest.empty() ? "" : "; largest: ", lack.largest);
}

}  // namespace miles
