#include "bench/op_trace.h"

#include <algorithm>
#include <type_traits>

#include "base/clock.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/drawn_ids.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/log_prob.h"
#include "ops/qkv_split.h"
#include "ops/rms_norm.h"
#include "ops/sample.h"
#include "ops/swiglu.h"

// Every op with its argument, each after its length: that is how the ABI writes names.
#define MILES_OPS(X)                                          \
  X(5, adamw, 9, AdamWArgs)                                   \
  X(3, add, 7, AddArgs)                                       \
  X(9, attention, 13, AttentionArgs)                          \
  X(18, attention_backward, 21, AttentionBackwardArgs)        \
  X(4, cast, 8, CastArgs)                                     \
  X(9, embedding, 13, EmbeddingArgs)                          \
  X(18, embedding_backward, 21, EmbeddingBackwardArgs)        \
  X(14, fill_drawn_ids, 16, FillDrawnIdsArgs)                 \
  X(6, linear, 10, LinearArgs)                                \
  X(21, linear_backward_input, 23, LinearBackwardInputArgs)   \
  X(22, linear_backward_weight, 24, LinearBackwardWeightArgs) \
  X(8, log_prob, 11, LogProbArgs)                             \
  X(17, log_prob_backward, 19, LogProbBackwardArgs)           \
  X(9, qkv_split, 12, QkvSplitArgs)                           \
  X(18, qkv_split_backward, 20, QkvSplitBackwardArgs)         \
  X(8, rms_norm, 11, RmsNormArgs)                             \
  X(17, rms_norm_backward, 19, RmsNormBackwardArgs)           \
  X(6, sample, 10, SampleArgs)                                \
  X(12, scatter_rows, 15, ScatterRowsArgs)                    \
  X(14, sum_of_squares, 16, SumOfSquaresArgs)                 \
  X(6, swiglu, 10, SwigluArgs)                                \
  X(15, swiglu_backward, 18, SwigluBackwardArgs)

namespace miles::bench {
namespace {

bool tracing = false;
Trace current;
Stopwatch since_start;

template <class Args>
void traced(const char* name, void (*op)(Exec&, const Args&), Exec& exec, const Args& args) {
  if (!tracing) return op(exec, args);
  const Stopwatch watch;
  op(exec, args);
  const double seconds = watch.seconds();
  auto entry = std::find_if(current.ops.begin(), current.ops.end(),
                            [&](const OpTime& time) { return time.name == name; });
  if (entry == current.ops.end()) entry = current.ops.insert(entry, {.name = name});
  ++entry->calls;
  entry->seconds += seconds;
  if constexpr (std::is_constructible_v<GemmCall, Args>) current.gemms.emplace_back(args);
}

}  // namespace

// The program's calls arrive at __wrap_…, and __real_… is the op.
#define X(op_length, op, args_length, Args)                                                    \
  void real_##op(Exec&, const Args&) asm("__real__ZN5miles" #op_length #op                     \
                                         "ERNS_4ExecERKNS_" #args_length #Args "E");           \
  void wrap_##op(Exec& exec, const Args& args) asm("__wrap__ZN5miles" #op_length #op           \
                                                   "ERNS_4ExecERKNS_" #args_length #Args "E"); \
  void wrap_##op(Exec& exec, const Args& args) {                                               \
    traced(#op, real_##op, exec, args);                                                        \
  }
MILES_OPS(X)
#undef X

double Trace::gemm_flops() const {
  double flops = 0;
  const auto extents = [](const Tensor& rows, const Tensor& weights) {
    return 2.0 * static_cast<double>(rows.dim(0)) * static_cast<double>(weights.elements());
  };
  for (const GemmCall& call : gemms) {
    if (const auto* forward = std::get_if<LinearArgs>(&call))
      flops += extents(forward->x, forward->w);
    else if (const auto* input = std::get_if<LinearBackwardInputArgs>(&call))
      flops += extents(input->dy, input->w);
    else if (const auto* weight = std::get_if<LinearBackwardWeightArgs>(&call))
      flops += extents(weight->dy, weight->dw);
  }
  return flops;
}

double Trace::op_seconds() const {
  double seconds = 0;
  for (const OpTime& op : ops) seconds += op.seconds;
  return seconds;
}

void start_trace() {
  current = {};
  since_start = {};
  tracing = true;
}

Trace stop_trace() {
  tracing = false;
  current.seconds = since_start.seconds();
  std::sort(current.ops.begin(), current.ops.end(),
            [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return std::move(current);
}

void replay(Exec& exec, const std::vector<GemmCall>& gemms) {
  for (const GemmCall& call : gemms) {
    if (const auto* forward = std::get_if<LinearArgs>(&call))
      real_linear(exec, *forward);
    else if (const auto* input = std::get_if<LinearBackwardInputArgs>(&call))
      real_linear_backward_input(exec, *input);
    else if (const auto* weight = std::get_if<LinearBackwardWeightArgs>(&call))
      real_linear_backward_weight(exec, *weight);
  }
}

}  // namespace miles::bench
