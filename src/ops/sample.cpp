#include "ops/sample.h"

#include "ops/check.h"

namespace miles {

void sample(Exec& exec, const SampleArgs& args) {
  const char* op = "sample";
  check_values({op, "logits", args.logits}, 2);
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  check_tensor({op, "logits", args.logits}, DType::f32, {rows, vocab});
  check_tensor({op, "tokens", args.tokens}, DType::i32, {rows});
  check_tensor({op, "rows", args.rows}, DType::u8, {rows * int64_t{sizeof(SampleRow)}});
  constexpr int64_t kMaxVocab = kWorkspaceBytes / 8;  // a filtered row sorts (f32, i32) pairs
  MILES_CHECK(vocab > 0 && vocab <= kMaxVocab, "{}: a vocabulary of {}; at most {}", op, vocab,
              kMaxVocab);
  check_workspace(op, exec);
  kernels(exec.device.kind()).sample(exec, args);
}

}  // namespace miles
