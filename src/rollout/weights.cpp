#include "rollout/weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace miles {
namespace {

// Bytes a copy: long enough to run at full speed, short enough to share the bus with other copies.
constexpr int64_t kUpdatePiece = int64_t{64} << 20;
// Bytes of host scratch, twice, for comparing.
constexpr int64_t kComparePiece = int64_t{4} << 20;

/// Runs body(offset, bytes) over [0, total) in pieces.
template <class Body>
void for_pieces(int64_t total, int64_t piece, Body body) {
  for (int64_t offset = 0; offset < total; offset += piece)
    body(offset, std::min(piece, total - offset));
}

/// Compares two ranges, each on the device or the host, by way of the host.
class BitComparison {
 public:
  explicit BitComparison(Stream& stream)
      : stream_(stream), a_(static_cast<size_t>(kComparePiece)), b_(a_.size()) {}

  bool equal(const std::byte* a, const std::byte* b, int64_t bytes) {
    bool equal = true;
    for_pieces(bytes, kComparePiece, [&](int64_t offset, int64_t count) {
      stream_.copy(a_.data(), a + offset, count);
      stream_.copy(b_.data(), b + offset, count);
      stream_.synchronize();
      equal = equal && std::memcmp(a_.data(), b_.data(), static_cast<size_t>(count)) == 0;
    });
    return equal;
  }

 private:
  Stream& stream_;
  std::vector<std::byte> a_, b_;
};

}  // namespace

RolloutWeights::RolloutWeights(const ModelConfig& config, const ParamLayout& layout, Memory memory)
    : layout_(layout),
      dtype_(config.dtype),
      region_(memory, Place::device, "rollout.weights", layout.elements() * size_of(dtype_)) {}

void RolloutWeights::offload() {
  region_.release();
  version_.reset();
}

void RolloutWeights::check_flat(const Tensor& flat) const {
  MILES_CHECK(flat.dtype() == dtype_ && flat.elements() == layout_.elements(),
              "weights of {} {} elements, where the model has {} {}", flat.elements(),
              name_of(flat.dtype()), layout_.elements(), name_of(dtype_));
  MILES_CHECK(resident(), "the engine's weights have no memory: onload them first");
}

void RolloutWeights::update(Stream& stream, const Tensor& flat, int64_t version) {
  check_flat(flat);
  version_.reset();  // until all have arrived
  const auto* from = static_cast<const std::byte*>(flat.data());
  for_pieces(flat.bytes(), kUpdatePiece, [&](int64_t offset, int64_t bytes) {
    stream.copy(region_.data() + offset, from + offset, bytes);
  });
  stream.synchronize();
  version_ = version;
}

void RolloutWeights::poison(Stream& stream) {
  MILES_CHECK(resident(), "the engine's weights have no memory: onload them first");
  version_.reset();
  const std::vector<std::byte> pattern(static_cast<size_t>(kComparePiece), std::byte{0xFF});
  const int64_t total = layout_.elements() * size_of(dtype_);
  for_pieces(total, kComparePiece, [&](int64_t offset, int64_t bytes) {
    stream.copy(region_.data() + offset, pattern.data(), bytes);
  });
  stream.synchronize();
}

std::vector<std::string> RolloutWeights::differences(Stream& stream, const Tensor& flat) const {
  check_flat(flat);
  const auto* theirs = static_cast<const std::byte*>(flat.data());
  BitComparison comparison(stream);
  std::vector<std::string> names;
  bool padding = true;
  const auto equal = [&](int64_t first, int64_t end) {  // elements
    const int64_t offset = first * size_of(dtype_);
    return comparison.equal(region_.data() + offset, theirs + offset,
                            (end - first) * size_of(dtype_));
  };
  int64_t end = 0;
  for (const ParamSpec& param : layout_.params()) {
    padding = padding && equal(end, param.offset);
    end = param.offset + param.elements();
    if (!equal(param.offset, end)) names.push_back(param.name);
  }
  padding = padding && equal(end, layout_.elements());
  if (!padding) names.emplace_back("(padding)");
  return names;
}

}  // namespace miles
