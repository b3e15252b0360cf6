#include "rl/device_setup.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "rl/sampling.h"

namespace miles {
namespace {

/// Refuses a share of the machine's memory that is more than all of it.
void check_share(const char* flag, const std::optional<int64_t>& bytes) {
  if (const int64_t all = host_capacity_bytes(); bytes && *bytes > all)
    fail(
        ErrorCode::flags,
        "{} {}: with --device cpu it is a share of the machine's memory, of which there are {} ({} "
        "bytes); give that or less",
        flag, format_bytes(*bytes), format_bytes(all), all);
}

}  // namespace

std::unique_ptr<Device> make_device(DeviceChoice choice) {
  if (choice == DeviceChoice::cuda) return make_cuda_device();
  if (choice == DeviceChoice::automatic && cuda_device_count() > 0) try {
      return make_cuda_device();
    } catch (const Error& error) {
      log::warn("--device auto takes the CPU: {}", error.what());
    }
  return make_cpu_device();
}

MemoryBudget resolve_budget(const DeviceConfig& config, const Device& device) {
  // What is sold as a GPU of 24 GiB has a little less, and its budget may still be called 24GiB:
  // shortage() looks at what is there.
  if (device.kind() == DeviceKind::cpu) {
    check_share("--gpu-memory-budget", config.gpu_memory_budget);
    check_share("--host-memory-budget", config.host_memory_budget);
  }
  const int64_t free = std::max<int64_t>(0, device_room(device, /*host_peak=*/0));
  return {.device_bytes = config.gpu_memory_budget.value_or(free),
          .host_bytes = config.host_memory_budget.value_or(host_capacity_bytes())};
}

EngineOptions resolve_engine(const EngineConfig& config, DeviceKind device, int64_t max_context_len,
                             int64_t requests) {
  // A GPU's time for a step is that of reading weights and cache, whatever few rows come along.
  const bool cuda = device == DeviceKind::cuda;
  EngineOptions options;
  options.page_size = config.page_size;
  options.max_running_requests =
      config.max_running_requests.value_or(std::min<int64_t>(cuda ? 256 : 64, requests));
  options.chunked_prefill_size = config.chunked_prefill_size.value_or(cuda ? 4096 : 512);
  options.true_on_policy = config.true_on_policy;
  // The CPU's kernels run on the host's own threads: there is nothing to overlap.
  options.overlap_schedule = config.overlap_schedule && cuda;
  options.max_context_len = max_context_len;
  const int64_t pages = (max_context_len + options.page_size - 1) / options.page_size;
  options.max_total_tokens =
      config.max_total_tokens.value_or(options.max_running_requests * pages * options.page_size);
  if (options.max_total_tokens < max_context_len)
    fail(
        ErrorCode::flags,
        "--max-total-tokens {}: the KV cache must hold the longest sample, {} tokens of prompt and "
        "response; raise it to that, leave it out, or shorten prompts or responses",
        options.max_total_tokens, max_context_len);
  return options;
}

std::vector<Lever> budget_levers(const DeviceConfig& config, const MemoryPlan& plan,
                                 const Device& device) {
  std::vector<Lever> levers;
  const auto add = [&](const char* flag, std::vector<int64_t> values,
                       std::optional<int64_t> DeviceConfig::*budget) {
    levers.push_back(
        {.flag = flag,
         .values = std::move(values),
         .set = [budget](TrainConfig& to, int64_t bytes) { return *(to.device.*budget = bytes); },
         .cost = Lever::Cost::memory,
         .unit = Lever::Unit::bytes});
  };
  if (config.gpu_memory_budget)
    add("--gpu-memory-budget",
        budgets_up_to(device_room(device, 0), *config.gpu_memory_budget, plan.device_peak),
        &DeviceConfig::gpu_memory_budget);
  if (config.host_memory_budget)
    add("--host-memory-budget",
        budgets_up_to(host_capacity_bytes(), *config.host_memory_budget, plan.host_peak),
        &DeviceConfig::host_memory_budget);
  return levers;
}

std::vector<Lever> engine_levers(const EngineOptions& now, const ModelConfig& model) {
  constexpr int64_t kLeast = 16;  // tokens: less saves nothing
  return {
      {.flag = "--max-total-tokens",
       .values = values_down_to(kLeast, now.max_total_tokens),
       .set =
           [&model](TrainConfig& to, int64_t tokens) {
             return *(to.engine.max_total_tokens = std::max(tokens, max_length_drawn(to, model)));
           }},
      {.flag = "--max-running-requests",
       .values = values_down_to(1, now.max_running_requests),
       .set = [](TrainConfig& to,
                 int64_t requests) { return *(to.engine.max_running_requests = requests); }},
      {.flag = "--chunked-prefill-size",
       .values = values_down_to(kLeast, now.chunked_prefill_size),
       .set = [](TrainConfig& to, int64_t tokens) {
         return *(to.engine.chunked_prefill_size = tokens);
       }}};
}

}  // namespace miles
