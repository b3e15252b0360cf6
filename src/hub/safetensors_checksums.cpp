#include "hub/safetensors_checksums.h"

#include <nlohmann/json.hpp>
#include <span>

#include "hub/checksum.h"

namespace miles {

std::string checksum_key(std::string_view tensor) {
  return std::string(kTensorChecksumPrefix) + std::string(tensor);
}

size_t digits_at(std::string_view header, std::string_view key) {
  const std::string place = nlohmann::json(key).dump() + ":\"";
  for (size_t at = header.find(place); at != std::string_view::npos;
       at = header.find(place, at + 1)) {
    // Inside of a longer key the quote would have a backslash before it.
    if (at == 0 || (header[at - 1] != '{' && header[at - 1] != ',')) continue;
    const size_t digits = at + place.size();
    return digits + Checksum::kDigits <= header.size() ? digits : std::string_view::npos;
  }
  return std::string_view::npos;
}

std::string header_checksum(std::string header) {
  if (const size_t at = digits_at(header, kHeaderChecksumKey); at != std::string::npos)
    header.replace(at, Checksum::kDigits, Checksum::kDigits, '0');
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(header)));
  return checksum.hex();
}

}  // namespace miles
