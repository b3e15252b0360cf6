#include "observe/run_info.h"

#include <fmt/format.h>

#include <random>

#include "base/file.h"
#include "hub/json_file.h"

namespace miles {
namespace {

constexpr const char* kFile = "run.json";

}  // namespace

std::string new_run_id() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

void write_run_info(const std::filesystem::path& run_dir, const RunInfo& info) {
  const nlohmann::ordered_json content = {
      {"run_id", info.run_id}, {"device", info.device}, {"device_is_gpu", info.device_is_gpu}};
  write_file_atomically(run_dir / kFile, content.dump(2) + "\n");
}

RunInfo read_run_info(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / kFile;
  if (!std::filesystem::exists(path)) return {};
  const nlohmann::json content = read_json_object(path);
  const JsonFields fields(content, path.string());
  return {.run_id = fields.text("run_id"),
          .device = fields.text("device"),
          .device_is_gpu = fields.find_flag("device_is_gpu").value_or(false)};
}

}  // namespace miles
