// run.json: whose records a run directory holds, and where they were made.
#pragma once

#include <filesystem>
#include <string>

namespace miles {

struct RunInfo {
  std::string run_id = {};  // of the run, resumed or not; empty: not known
  std::string device = {};  // "NVIDIA H200", "AMD EPYC, 2 threads"; empty: not known
  bool device_is_gpu = false;
};

/// An id that no other run has: 16 random hexadecimal digits.
std::string new_run_id();

/// Throws Error{data}; the file is then as it was.
void write_run_info(const std::filesystem::path& run_dir, const RunInfo& info);

/// What is known; nothing where there is no run.json. Throws Error{data} when it is damaged.
RunInfo read_run_info(const std::filesystem::path& run_dir);

}  // namespace miles
