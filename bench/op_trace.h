// Which ops a run calls, how long each takes, and its matrix products once more without the rest.
// The linker sends every call of an op through here (--wrap in CMakeLists.txt): what is measured is
// the program as it is, and what is replayed is what it did, on its own buffers.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "ops/gemm.h"

namespace miles::bench {

/// One kind of op within a trace.
struct OpTime {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
};

using GemmCall = std::variant<LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs>;

/// What one thread called between start() and stop().
struct Trace {
  std::vector<OpTime> ops;      // the longest first
  std::vector<GemmCall> gemms;  // in order

  double seconds = 0;  // from start to stop

  double gemm_flops() const;  // 2·M·N·K of all
  double op_seconds() const;  // of all ops
};

void start_trace();
Trace stop_trace();

/// The products alone, in order, where they lay. Their operands' memory must still be there; what
/// they write is scratch to the next step.
void replay(Exec& exec, const std::vector<GemmCall>& gemms);

}  // namespace miles::bench
