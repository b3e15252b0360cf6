// The weight store: the only source of truth for the weights and the optimizer's state. The trainer
// leases blocks from it, the engine copies from it, checkpoints are written from it; nobody keeps a
// mirror.
//
// Two cuts of the same flat vector (model/layout.h):
//   weights by group    embed │ layer 0 … L-1 │ head: what a forward needs at a time. Layers go
//                       through a window when streamed, but for the first few where there is room;
//                       embed and head, needed at both ends of a step, stay.
//   state by chunk      groups in pieces of at most one layer: what the optimizer needs at a time.
//                       A chunk holds [low | m | v] together, so that it moves with one copy.
#pragma once

#include <optional>
#include <vector>

#include "actor/actor_options.h"
#include "memory/arena.h"
#include "memory/block_store.h"
#include "model/config.h"
#include "model/layout.h"

namespace miles {

/// One model's weights, by group.
struct GroupedWeights {
  BlockStore layers;  // block l: layer l
  BlockStore ends;    // block kEmbed, block kHead

  static constexpr int kEmbed = 0;
  static constexpr int kHead = 1;

  void onload();
  void offload();
};

/// A piece of one group.
struct Chunk {
  int group = 0;             // -1: embed, 0 … L-1: layer, L: head
  int64_t group_offset = 0;  // elements from the group's start
  int64_t offset = 0;        // elements from the start of the flat vector
  int64_t elements = 0;
};

/// All of them, in order.
std::vector<Chunk> make_chunks(const ParamLayout& layout);

/// Where the optimizer's state of a chunk lies in its block, bytes.
struct ChunkState {
  int64_t low = 0;  // [n] u16; nothing with f32 weights
  int64_t m = 0;    // [n] f32
  int64_t v = 0;    // [n] f32
  int64_t bytes = 0;
};

ChunkState chunk_state(int64_t elements, DType dtype);

class WeightStore {
 public:
  WeightStore(const ActorOptions& options, const ModelConfig& config, const ParamLayout& layout,
              Memory memory, CopyStreams& copies);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  /// Chunks of a group, first and one past the last.
  std::pair<int, int> chunks_of(int group) const;

  GroupedWeights& weights() { return *weights_; }
  GroupedWeights& reference();
  BlockStore& optimizer() { return *optimizer_; }  // block c: [low | m | v] of chunk c
  BlockStore& gradients() {
    return *gradients_;
  }  // block c: chunk c's gradient, in the weights' dtype

  /// The weights at rest, flat: [elements] T. Newest once weights() has been flushed or offloaded.
  Tensor at_rest() const;
  Tensor reference_at_rest() const;
  /// One chunk's optimizer state at rest.
  std::byte* state_at_rest(int chunk) const;
  Place place() const { return place_; }

  /// The gradients' home, when it is on the device, lives only while training.
  void commit_gradients() { gradient_home_.commit(); }
  void release_gradients();

  bool streamed() const { return placement_ == ActorPlacement::streamed; }

 private:
  /// BlockStoreOptions' numbers of slots.
  struct SlotCounts {
    int window = 0;
    int resident = 0;
  };
  /// For a store of `blocks` of which the first `resident` stay: a window for the others where the
  /// trainer streams.
  SlotCounts slot_counts(int64_t resident, int64_t blocks) const;
  void make_optimizer(const ActorOptions& options, const std::string& home_tag, Memory memory,
                      CopyStreams& copies);
  void make_gradients(const ActorOptions& options, Memory memory, CopyStreams& copies);
  GroupedWeights group_weights(Memory memory, CopyStreams& copies, std::byte* home,
                               const std::string& tag, SlotCounts for_layers) const;

  const ModelConfig& config_;
  const ParamLayout& layout_;
  ActorPlacement placement_;
  Place place_;
  std::vector<Chunk> chunks_;
  std::vector<int>
      first_chunk_;  // [L + 3] first chunk of group g - 1; one past the last at the end
  std::vector<BlockSpan> state_spans_;
  Region weight_home_;
  Region state_home_;
  Region gradient_home_;
  Region reference_home_;
  std::optional<GroupedWeights> weights_;
  std::optional<GroupedWeights> reference_;
  std::optional<BlockStore> optimizer_;
  std::optional<BlockStore> gradients_;
};

}  // namespace miles
