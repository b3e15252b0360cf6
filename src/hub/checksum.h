// A checksum of bytes that come in pieces: XXH3, 64 bits. It finds damage, not intent.
// Source: the xxHash specification and library.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace miles {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::span<const std::byte> bytes);
  /// Of all that was added: kDigits hexadecimal digits.
  std::string hex() const;

  static constexpr size_t kDigits = 16;

 private:
  struct State;  // the library's
  std::unique_ptr<State> state_;
};

}  // namespace miles
