// Prompts from a JSON-lines file: one object a line, UTF-8; blank lines are skipped.
#pragma once

#include <vector>

#include "rl/prompt.h"

namespace miles {

/// The selected rows in the file's order, never empty. Only selected lines are parsed. A prompt is
/// a string, a label a string or a number, metadata an object. Throws Error{data} "file:line: ..."
/// for a line that is not as above, or "file:line:column: ..." (in bytes) where it is no JSON;
/// Error{data} for a file without rows or a slice that selects none, Error{flags} for a slice that
/// cannot be read.
std::vector<Prompt> read_prompt_file(const DataOptions& options);

}  // namespace miles
