#include "ops/attention.h"

#include <algorithm>

#include "ops/check.h"
#include "ops/head_limits.h"

namespace miles {
namespace {

constexpr int64_t kMaxSequences = 1 << 18;  // kernels keep a list of them in the workspace

/// The extents that every operand agrees on.
struct Extents {
  int64_t tokens, heads, kv_heads, dim, sequences;
};

void check_extents(const char* op, const Extents& e) {
  MILES_CHECK(e.dim > 0 && e.dim <= kMaxHeadDim, "{}: heads of {} elements; at most {}", op, e.dim,
              kMaxHeadDim);
  MILES_CHECK(e.kv_heads > 0 && e.heads > 0 && e.heads % e.kv_heads == 0,
              "{}: {} query heads on {} key heads", op, e.heads, e.kv_heads);
  MILES_CHECK(e.sequences >= 0 && e.sequences <= kMaxSequences, "{}: {} sequences; at most {}", op,
              e.sequences, kMaxSequences);
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  const char* op = "attention";
  check_values({op, "q", args.q}, 3);
  check_values({op, "k_pool", args.k_pool}, 3);
  const DType type = args.q.dtype();
  const Extents e = {.tokens = args.q.dim(0),
                     .heads = args.q.dim(1),
                     .kv_heads = args.k_pool.dim(1),
                     .dim = args.q.dim(2),
                     .sequences = args.context.elements()};
  check_extents(op, e);
  const Shape pool = {args.k_pool.dim(0), e.kv_heads, e.dim};
  check_tensor({op, "k_pool", args.k_pool}, type, pool);
  check_tensor({op, "v_pool", args.v_pool}, type, pool);
  check_tensor({op, "query_begin", args.query_begin}, DType::i32, {e.sequences + 1});
  check_tensor({op, "context", args.context}, DType::i32, {e.sequences});
  if (args.page_table) {
    MILES_CHECK(args.page_table.shape().rank() == 2 && args.page_size > 0,
                "{}: page_table is {} with pages of {} tokens", op, args.page_table.shape().str(),
                args.page_size);
    check_tensor({op, "page_table", args.page_table}, DType::i32,
                 {e.sequences, args.page_table.dim(1)});
  } else {
    check_tensor({op, "kv_begin", args.kv_begin}, DType::i32, {e.sequences});
  }
  if (args.shared_runs) {
    check_tensor({op, "shared_runs", args.shared_runs}, DType::i32, {args.shared_runs.dim(0), 2});
    check_tensor({op, "shared_keys", args.shared_keys}, DType::i32, {e.sequences});
  }
  check_tensor({op, "out", args.out}, type, {e.tokens, e.heads, e.dim});
  check_optional({op, "lse", args.lse}, DType::f32, {e.tokens, e.heads});
  check_workspace(op, exec);
  kernels(exec.device.kind()).attention(exec, args);
}

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  const char* op = "attention_backward";
  check_values({op, "q", args.q}, 3);
  check_values({op, "k", args.k}, 3);
  const DType type = args.q.dtype();
  const Extents e = {.tokens = args.q.dim(0),
                     .heads = args.q.dim(1),
                     .kv_heads = args.k.dim(1),
                     .dim = args.q.dim(2),
                     .sequences = args.query_begin.elements() - 1};
  check_extents(op, e);
  const Shape queries = {e.tokens, e.heads, e.dim}, keys = {e.tokens, e.kv_heads, e.dim};
  check_tensor({op, "k", args.k}, type, keys);
  check_tensor({op, "v", args.v}, type, keys);
  check_tensor({op, "out", args.out}, type, queries);
  check_tensor({op, "lse", args.lse}, DType::f32, {e.tokens, e.heads});
  check_tensor({op, "dout", args.dout}, type, queries);
  check_tensor({op, "query_begin", args.query_begin}, DType::i32, {e.sequences + 1});
  check_tensor({op, "dq", args.dq}, type, queries);
  check_tensor({op, "dk", args.dk}, type, keys);
  check_tensor({op, "dv", args.dv}, type, keys);
  check_optional({op, "scratch", args.scratch}, DType::u8, {args.scratch.bytes()});
  MILES_CHECK(reinterpret_cast<uintptr_t>(args.scratch.data()) % 16 == 0,
              "{}: scratch at {}, not at a multiple of 16", op, args.scratch.data());
  MILES_CHECK(args.longest == 0 ||
                  args.longest >= (e.tokens + e.sequences - 1) / std::max<int64_t>(1, e.sequences),
              "{}: {} tokens in {} sequences of at most {}", op, e.tokens, e.sequences,
              args.longest);
  check_workspace(op, exec);
  kernels(exec.device.kind()).attention_backward(exec, args);
}

}  // namespace miles
