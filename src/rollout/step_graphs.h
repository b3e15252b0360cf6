// Graphs of decode steps: one for each of a few shapes, captured when the shape comes for the
// second time, so that a step of hundreds of kernels costs one launch. Addresses never move, so a
// graph stays valid however often the memory behind them goes and comes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "device/device.h"

namespace miles {

/// What a decode step's kernels depend on, besides what lies at their addresses.
struct DecodeShape {
  int64_t sequences = 0;
  int64_t pages = 0;                                     // in a page table
  bool shares = false;                                   // keys are read once for several sequences
  auto operator<=>(const DecodeShape&) const = default;  // NOLINT(modernize-use-nullptr): none here
};

/// The smallest shape of the ladder that holds so much: about four numbers of sequences and one of
/// pages an octave, and at most the limits; `shares` as wanted.
DecodeShape ladder_shape(DecodeShape wanted, DecodeShape limits);

class StepGraphs {
 public:
  /// Has `work`, a decode step of that shape, done on `stream`: enqueued, the first time, and by
  /// graph later.
  void run(Stream& stream, DecodeShape shape, const std::function<void()>& work);

  static constexpr size_t kMostShapes = 64;  // one more takes the place of the one longest unused

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;  // null: the shape came once
    int64_t last_run = 0;
  };
  std::map<DecodeShape, Entry> shapes_;
  int64_t runs_ = 0;
};

}  // namespace miles
