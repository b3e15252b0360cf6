// Checksums in a safetensors file that we wrote: XXH3 of each tensor's bytes and of the header, in
// the metadata, under keys that other programs pass over.
#pragma once

#include <string>
#include <string_view>

namespace miles {

inline constexpr std::string_view kHeaderChecksumKey = "xxh3";
inline constexpr std::string_view kTensorChecksumPrefix = "xxh3 ";  // the tensor's name follows
std::string checksum_key(std::string_view tensor);

/// Where in a header's text the digits under the key begin; npos where there are none.
size_t digits_at(std::string_view header, std::string_view key);

/// Of length and JSON as they are in the file, but that the digits of this very checksum are 0.
std::string header_checksum(std::string header);

}  // namespace miles
