// A batch of tokens for one forward: variable-length pieces of sequences, one after the other, no
// padding.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/arena.h"
#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// The batch on the host. N tokens of B sequences.
struct HostBatch {
  std::vector<int32_t> ids;        // [N]
  std::vector<int32_t> positions;  // [N] absolute position in its sequence
  std::vector<int32_t> slots;  // [N] row of the key/value pool that the token's key and value go to
  std::vector<int32_t> query_begin;  // [B + 1] first token of each sequence
  std::vector<int32_t> context;      // [B] keys a sequence has in all, this batch's included
  std::vector<int32_t> page_table;   // [B, P] pages of each sequence's keys; or empty, and then
  std::vector<int32_t> kv_begin;     // [B] first row of each sequence's keys
  std::vector<int32_t> shared_runs;  // [R, 2] who shares keys, as AttentionArgs has it; or empty
  std::vector<int32_t> shared_keys;  // [B] with shared_runs: how many
  int page_size = 0;                 // tokens a page, with page_table

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(context.size()); }
  bool shares() const { return !shared_runs.empty(); }
  int64_t longest() const;  // tokens of this batch that one sequence has at most

  /// Appends a whole sequence whose keys lie packed in token order (training).
  void append_packed(const std::vector<int32_t>& sequence);
};

/// The same on the device.
struct DeviceBatch {
  Tensor ids;           // [N] i32
  Tensor positions;     // [N] i32
  Tensor slots;         // [N] i32
  Tensor query_begin;   // [B + 1] i32
  Tensor context;       // [B] i32
  Tensor page_table;    // [B, P] i32, or empty
  Tensor kv_begin;      // [B] i32, or empty
  Tensor shared_runs;   // [R, 2] i32, or empty
  Tensor shared_keys;   // [B] i32, or empty
  int page_size = 0;    // tokens a page, with page_table
  int64_t longest = 0;  // tokens of one sequence, at most
};

/// `batch` on the device, each array brought by `put(values)`, which gives a tensor of them.
template <class Put>
DeviceBatch to_device(const HostBatch& batch, Put&& put) {
  DeviceBatch device{.ids = put(batch.ids),
                     .positions = put(batch.positions),
                     .slots = put(batch.slots),
                     .query_begin = put(batch.query_begin),
                     .context = put(batch.context),
                     .page_table = put(batch.page_table),
                     .kv_begin = put(batch.kv_begin),
                     .shared_runs = put(batch.shared_runs),
                     .shared_keys = put(batch.shared_keys),
                     .page_size = batch.page_size,
                     .longest = batch.longest()};
  if (device.page_table)
    device.page_table = device.page_table.reshape(
        {batch.sequences(), device.page_table.elements() / batch.sequences()});
  if (device.shared_runs)
    device.shared_runs = device.shared_runs.reshape({device.shared_runs.elements() / 2, 2});
  return device;
}

/// Copies `values` into a new tensor of the arena; `values` must stay until the stream has passed.
Tensor upload(Exec& exec, Arena& arena, const std::vector<int32_t>& values);
Tensor upload(Exec& exec, Arena& arena, const std::vector<float>& values);

/// Copies the batch into the arena; `batch` must stay until the stream has passed.
DeviceBatch upload(Exec& exec, Arena& arena, const HostBatch& batch);

/// Bytes that upload() takes at most, for that many tokens, sequences and pages a sequence.
int64_t batch_bytes(int64_t tokens, int64_t sequences, int64_t pages_per_sequence);

}  // namespace miles
