// e^x of a vector. As in simd.h, everything lives in the instruction set's namespace.
#pragma once

#include "ops/cpu/simd.h"

namespace miles::MILES_ISA {

/// e^x within 2 ulp; 0 below the smallest normal number's logarithm, ∞ above the largest's; NaN
/// stays NaN. x = n·ln 2 + r, e^r by a degree-6 polynomial (own Chebyshev fit, relative
/// error 1.1e-8), 2^n by exponent bits.
MILES_INLINE Vec vexp(Vec x) {
  const Vec magic = splat(12582912.0F);  // 1.5·2^23: adding it rounds to an integer in the low bits
  const Vec shifted = madd(x, splat(1.44269504F), magic);
  const Vec n = shifted - magic;
  Vec r = madd(n, splat(-0.693359375F), x);  // ln 2 in two parts, the first exact in 10 bits
  r = madd(n, splat(2.12194440e-4F), r);
  Vec p = splat(0.001392637612298131F);
  p = madd(p, r, splat(0.008363333530724049F));
  p = madd(p, r, splat(0.04166655242443085F));
  p = madd(p, r, splat(0.16666576266288757F));
  p = madd(p, r, splat(0.5F));
  p = madd(p, r * r, r) + 1.0F;
  const VecU exponent = (bits_as<VecU>(shifted) - bits_as<VecU>(magic)) << 23;
  const Vec y = bits_as<Vec>(bits_as<VecU>(p) + exponent);
  const Vec low = x < -87.33654F ? Vec{} : y;
  const Vec high = x > 88.72283173F ? splat(__builtin_inff()) : low;
  return x != x ? x : high;
}

}  // namespace miles::MILES_ISA
