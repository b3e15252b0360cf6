#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace miles {
namespace {

/// Wavelengths longer than the original context are stretched, short ones kept, those between
/// blended.
float stretch(float inv_freq, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / inv_freq;
  if (wavelength > context / scaling.low_freq_factor)
    return static_cast<float>(inv_freq / scaling.factor);
  if (wavelength < context / scaling.high_freq_factor) return inv_freq;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq);
}

}  // namespace

std::vector<float> make_rope_table(const ModelConfig& config, int64_t positions) {
  const int64_t half = config.head_dim / 2;
  std::vector<float> inv_freq(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    float frequency = 1.0F / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_scaling) frequency = stretch(frequency, *config.rope_scaling);
    inv_freq[static_cast<size_t>(i)] = frequency;
  }
  std::vector<float> table(static_cast<size_t>(positions * config.head_dim));
  for (int64_t p = 0; p < positions; ++p) {
    float* row = table.data() + p * config.head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * inv_freq[static_cast<size_t>(i)];
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace miles
