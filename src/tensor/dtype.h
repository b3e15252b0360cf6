// Element types, and bfloat16 conversions that every backend and file format shares.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace miles {

/// Element type of a tensor.
enum class DType : uint8_t { f32, bf16, f16, i32, i64, u16, u8 };

/// Bytes per element.
constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", …: Hugging Face's spelling.
std::string_view name_of(DType dtype);

/// A bfloat16 number: the high half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

/// A half-precision number, only ever read from files and converted.
struct Half {
  uint16_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
float to_float(Half x);

/// Rounds to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  return to_bfloat16(x);
}

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<Half>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

}  // namespace miles
