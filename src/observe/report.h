// The report of a run: one HTML file that shows how it went and can be sent to somebody as it is.
#pragma once

#include <filesystem>
#include <string>

#include "observe/run_record.h"

namespace miles {

/// The page: summary, charts, the handoff's events, the last metrics, the configuration. Loads
/// nothing.
std::string report_html(const RunRecord& run);

/// Reads metrics.jsonl, memory.jsonl and config.toml of a run, finished or not, and writes
/// report.html beside them. Throws Error{data} for a file that cannot be read or written.
void write_report(const std::filesystem::path& run_dir);

}  // namespace miles
