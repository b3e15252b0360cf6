#include "hub/checksum.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL  // nothing to link
#include <xxhash.h>

namespace miles {

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_64bits_reset(&state_->xxh3);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string Checksum::hex() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh3));
}

}  // namespace miles
