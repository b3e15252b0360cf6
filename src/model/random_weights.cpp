#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "base/rng.h"
#include "hub/parallel_ranges.h"
#include "model/weights_io.h"

namespace miles {
namespace {

constexpr int64_t kBlock = 4;  // numbers out of one philox block
constexpr int64_t kGrain =
    1 << 16;  // elements: enough work to pay for a thread; a multiple of kBlock

/// Normal numbers of a given standard deviation, one from each 32-bit word: Box–Muller with its two
/// factors tabulated over 16 bits each. None lies beyond 4.85 standard deviations.
class NormalTable {
 public:
  explicit NormalTable(double deviation) {
    for (size_t i = 0; i < kSize; ++i) {
      const double u = (static_cast<double>(i) + 0.5) / kSize;
      radius_[i] = static_cast<float>(deviation * std::sqrt(-2 * std::log(u)));
      cosine_[i] = static_cast<float>(std::cos(2 * std::numbers::pi * u));
    }
  }
  float operator()(uint32_t word) const { return radius_[word >> 16] * cosine_[word & 0xFFFFU]; }

 private:
  static constexpr size_t kSize = 1 << 16;
  std::vector<float> radius_ = std::vector<float>(kSize);
  std::vector<float> cosine_ = std::vector<float>(kSize);
};

/// The random numbers of one parameter.
struct Draw {
  const NormalTable& table;
  uint64_t seed;
  uint64_t stream;  // the parameter's index
};

template <class T>
void fill_normal(const Draw& draw, std::span<T> values) {
  parallel_ranges(std::ssize(values), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kBlock) {
      const auto words =
          philox(draw.seed, RngUse::init_weights, draw.stream, static_cast<uint64_t>(i / kBlock));
      for (int64_t j = 0; j < std::min(kBlock, last - i); ++j)
        values[static_cast<size_t>(i + j)] =
            from_float<T>(draw.table(words[static_cast<size_t>(j)]));
    }
  });
}

template <class T>
void fill(const ParamLayout& layout, const NormalTable& table, uint64_t seed, const Tensor& flat) {
  uint64_t stream = 0;
  for (const ParamSpec& param : layout.params()) {
    const std::span<T> values = param_view(param, flat).span<T>();
    if (param.shape.rank() == 2)
      fill_normal({table, seed, stream}, values);
    else
      std::fill(values.begin(), values.end(), from_float<T>(1.0F));
    ++stream;
  }
}

}  // namespace

void init_random_weights(const ModelConfig& config, const ParamLayout& layout, uint64_t seed,
                         const Tensor& flat) {
  MILES_CHECK(flat.elements() == layout.elements(), "{} elements, the layout has {}",
              flat.elements(), layout.elements());
  const NormalTable table(config.initializer_range);
  zero_padding(layout, flat);
  if (flat.dtype() == DType::f32)
    fill<float>(layout, table, seed, flat);
  else
    fill<BFloat16>(layout, table, seed, flat);
}

}  // namespace miles
