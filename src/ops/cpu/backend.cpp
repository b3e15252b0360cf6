#include "ops/cpu/backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/cpu/extent.h"
#include "tensor/tensor.h"

namespace miles {

#define X(isa)                                                         \
  namespace isa {                                                      \
  void adamw(Exec&, const AdamWArgs&);                                 \
  void add(Exec&, const AddArgs&);                                     \
  void attention(Exec&, const AttentionArgs&);                         \
  void attention_backward(Exec&, const AttentionBackwardArgs&);        \
  void cast(Exec&, const CastArgs&);                                   \
  void embedding(Exec&, const EmbeddingArgs&);                         \
  void embedding_backward(Exec&, const EmbeddingBackwardArgs&);        \
  void fill_drawn_ids(Exec&, const FillDrawnIdsArgs&);                 \
  void linear(Exec&, const LinearArgs&);                               \
  void linear_backward_input(Exec&, const LinearBackwardInputArgs&);   \
  void linear_backward_weight(Exec&, const LinearBackwardWeightArgs&); \
  void log_prob(Exec&, const LogProbArgs&);                            \
  void log_prob_backward(Exec&, const LogProbBackwardArgs&);           \
  void qkv_split(Exec&, const QkvSplitArgs&);                          \
  void qkv_split_backward(Exec&, const QkvSplitBackwardArgs&);         \
  void rms_norm(Exec&, const RmsNormArgs&);                            \
  void rms_norm_backward(Exec&, const RmsNormBackwardArgs&);           \
  void sample(Exec&, const SampleArgs&);                               \
  void scatter_rows(Exec&, const ScatterRowsArgs&);                    \
  void sum_of_squares(Exec&, const SumOfSquaresArgs&);                 \
  void swiglu(Exec&, const SwigluArgs&);                               \
  void swiglu_backward(Exec&, const SwigluBackwardArgs&);              \
  constexpr Kernels kKernels = {                                       \
      .adamw = adamw,                                                  \
      .add = add,                                                      \
      .attention = attention,                                          \
      .attention_backward = attention_backward,                        \
      .cast = cast,                                                    \
      .embedding = embedding,                                          \
      .embedding_backward = embedding_backward,                        \
      .fill_drawn_ids = fill_drawn_ids,                                \
      .linear = linear,                                                \
      .linear_backward_input = linear_backward_input,                  \
      .linear_backward_weight = linear_backward_weight,                \
      .log_prob = log_prob,                                            \
      .log_prob_backward = log_prob_backward,                          \
      .qkv_split = qkv_split,                                          \
      .qkv_split_backward = qkv_split_backward,                        \
      .rms_norm = rms_norm,                                            \
      .rms_norm_backward = rms_norm_backward,                          \
      .sample = sample,                                                \
      .scatter_rows = scatter_rows,                                    \
      .sum_of_squares = sum_of_squares,                                \
      .swiglu = swiglu,                                                \
      .swiglu_backward = swiglu_backward,                              \
  };                                                                   \
  }
MILES_HAVE_ISAS
#undef X

int64_t extent(const Tensor& tensor, int i) {
  return tensor.dim(i);
}

namespace {

/// An instruction set of this build.
struct InstructionSet {
  std::string_view name;
  const Kernels* kernels;
};

#define X(isa) {#isa, &isa::kKernels},
constexpr InstructionSet kSets[] = {MILES_HAVE_ISAS};  // the widest last
#undef X

#if defined(__x86_64__)
/// What x86-64-v3 has and not every compiler's __builtin_cpu_supports knows by name. Source:
/// Intel's manual, CPUID: leaf 1, ECX bits 22 and 29; leaf 0x80000001, ECX bit 5.
bool has_movbe_f16c_lzcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_MOVBE) == 0 || (c & bit_F16C) == 0)
    return false;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
}
#endif

/// Whether the processor, and the system's saving of its registers, allow an instruction set.
bool supported(std::string_view name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (name == "avx2")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           has_movbe_f16c_lzcnt();
  if (name == "avx512")
    return supported("avx2") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return name == "baseline";
}

const Kernels& choose() {
  std::string allowed;
  const Kernels* widest = nullptr;
  const char* wanted = std::getenv("MILES_ISA");
  for (const InstructionSet& set : kSets) {
    if (!supported(set.name)) continue;
    if (wanted != nullptr && set.name == wanted) return *set.kernels;
    widest = set.kernels;
    allowed += allowed.empty() ? "" : ", ";
    allowed += set.name;
  }
  if (wanted != nullptr)
    fail(ErrorCode::flags,
         "the environment variable MILES_ISA is \"{}\", which this build or this processor lacks; "
         "allowed: {}. Unset it for the widest",
         wanted, allowed);
  return *widest;
}

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace miles
