// Amounts as people write them: bytes ("24GiB", "512 MiB", "1e9"), durations and counts for
// printing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace miles {

/// "1.5 GiB", "812.0 MiB", "17 B": binary units, one decimal.
std::string format_bytes(int64_t bytes);

/// "0.8 ms", "3.2 s", "4 min 05 s".
std::string format_seconds(double seconds);

/// "1 response", "2 responses".
std::string format_count(int64_t count, std::string_view noun);

/// Reads "24GiB", "24 GB", "1.5g", "4096": KiB/MiB/GiB/TiB and bare K/M/G/T are powers of 1024,
/// KB/MB/GB/TB powers of 1000. Case does not matter. Throws Error{flags} that names `what`.
int64_t parse_bytes(std::string_view text, std::string_view what);

}  // namespace miles
