// How an op reaches its kernel. Each op has a header (its contract), a source beside it (shape
// checks) and one body per backend; a Kernels table binds them, one table per backend and, on the
// CPU, per instruction set. Nothing above this folder knows which one runs.
#pragma once

#include <cstddef>
#include <span>

#include "device/device.h"

namespace miles {

/// What the bits of a row of a matrix product may depend on: its own row of x and w alone, or how
/// many rows come at once as well. Never on anything else.
enum class RowBits { invariant, of_extents };

/// Where an op runs: what every op takes first. The stream belongs to the device.
struct Exec {
  Device& device;
  /// Ops are enqueued on it, and synchronise only where a product of a new kind has its algorithms
  /// timed.
  Stream& stream;
  /// Scratch of the device, at least workspace_bytes() at a multiple of workspace_alignment(); what it
  /// holds dies with the op.
  std::span<std::byte> workspace;
  /// Of linear(): invariant where rollout and training must agree.
  RowBits row_bits = RowBits::invariant;
};

/// What `Exec::workspace` must hold at least, bytes, on the CPU.
inline constexpr int64_t kWorkspaceBytes = int64_t{8} << 20;
/// The same on CUDA: partial sums, decode's states, sorted ids, lists of candidates.
inline constexpr int64_t kCudaWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t workspace_bytes(DeviceKind kind) {
  return kind == DeviceKind::cuda ? kCudaWorkspaceBytes : kWorkspaceBytes;
}
/// Bytes.
constexpr int64_t workspace_alignment(DeviceKind kind) {
  return kind == DeviceKind::cuda ? 256 : 64;
}

struct AdamWArgs;
struct AddArgs;
struct AttentionArgs;
struct AttentionBackwardArgs;
struct CastArgs;
struct EmbeddingArgs;
struct EmbeddingBackwardArgs;
struct FillDrawnIdsArgs;
struct LinearArgs;
struct LinearBackwardInputArgs;
struct LinearBackwardWeightArgs;
struct LogProbArgs;
struct LogProbBackwardArgs;
struct QkvSplitArgs;
struct QkvSplitBackwardArgs;
struct RmsNormArgs;
struct RmsNormBackwardArgs;
struct SampleArgs;
struct ScatterRowsArgs;
struct SumOfSquaresArgs;
struct SwigluArgs;
struct SwigluBackwardArgs;

/// A backend's bodies. Arguments have been checked.
struct Kernels {
  void (*adamw)(Exec&, const AdamWArgs&);
  void (*add)(Exec&, const AddArgs&);
  void (*attention)(Exec&, const AttentionArgs&);
  void (*attention_backward)(Exec&, const AttentionBackwardArgs&);
  void (*cast)(Exec&, const CastArgs&);
  void (*embedding)(Exec&, const EmbeddingArgs&);
  void (*embedding_backward)(Exec&, const EmbeddingBackwardArgs&);
  void (*fill_drawn_ids)(Exec&, const FillDrawnIdsArgs&);
  void (*linear)(Exec&, const LinearArgs&);
  void (*linear_backward_input)(Exec&, const LinearBackwardInputArgs&);
  void (*linear_backward_weight)(Exec&, const LinearBackwardWeightArgs&);
  void (*log_prob)(Exec&, const LogProbArgs&);
  void (*log_prob_backward)(Exec&, const LogProbBackwardArgs&);
  void (*qkv_split)(Exec&, const QkvSplitArgs&);
  void (*qkv_split_backward)(Exec&, const QkvSplitBackwardArgs&);
  void (*rms_norm)(Exec&, const RmsNormArgs&);
  void (*rms_norm_backward)(Exec&, const RmsNormBackwardArgs&);
  void (*sample)(Exec&, const SampleArgs&);
  void (*scatter_rows)(Exec&, const ScatterRowsArgs&);
  void (*sum_of_squares)(Exec&, const SumOfSquaresArgs&);
  void (*swiglu)(Exec&, const SwigluArgs&);
  void (*swiglu_backward)(Exec&, const SwigluBackwardArgs&);
};

/// The table for a kind of device. Throws Error{device} when that backend was not built.
const Kernels& kernels(DeviceKind kind);

}  // namespace miles
