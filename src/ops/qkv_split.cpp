#include "ops/qkv_split.h"

#include "ops/check.h"
#include "ops/head_limits.h"

namespace miles {
namespace {

void check_heads(const char* op, const Shape& q, const Shape& k) {
  const int64_t dim = q[2];
  MILES_CHECK(dim > 0 && dim % 2 == 0 && dim <= kMaxHeadDim,
              "{}: heads of {} elements; allowed: even, up to {}", op, dim, kMaxHeadDim);
  MILES_CHECK(q[1] > 0 && k[1] > 0, "{}: {} query and {} key heads", op, q[1], k[1]);
}

}  // namespace

void qkv_split(Exec& exec, const QkvSplitArgs& args) {
  const char* op = "qkv_split";
  check_values({op, "q", args.q}, 3);
  check_values({op, "k_pool", args.k_pool}, 3);
  check_values({op, "rope", args.rope}, 2);
  check_heads(op, args.q.shape(), args.k_pool.shape());
  const DType type = args.q.dtype();
  const int64_t tokens = args.q.dim(0), heads = args.q.dim(1), dim = args.q.dim(2);
  const int64_t slots = args.k_pool.dim(0), kv_heads = args.k_pool.dim(1);
  check_tensor({op, "qkv", args.qkv}, type, {tokens, (heads + 2 * kv_heads) * dim});
  check_optional({op, "q_norm", args.q_norm}, type, {dim});
  check_optional({op, "k_norm", args.k_norm}, type, {dim});
  check_tensor({op, "positions", args.positions}, DType::i32, {tokens});
  check_tensor({op, "rope", args.rope}, DType::f32, {args.rope.dim(0), dim});
  check_tensor({op, "slots", args.slots}, DType::i32, {tokens});
  check_tensor({op, "k_pool", args.k_pool}, type, {slots, kv_heads, dim});
  check_tensor({op, "v_pool", args.v_pool}, type, {slots, kv_heads, dim});
  kernels(exec.device.kind()).qkv_split(exec, args);
}

void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args) {
  const char* op = "qkv_split_backward";
  check_values({op, "dq", args.dq}, 3);
  check_values({op, "dk", args.dk}, 3);
  check_values({op, "rope", args.rope}, 2);
  check_heads(op, args.dq.shape(), args.dk.shape());
  const DType type = args.dq.dtype();
  const int64_t tokens = args.dq.dim(0), heads = args.dq.dim(1), dim = args.dq.dim(2);
  const int64_t kv_heads = args.dk.dim(1), row = (heads + 2 * kv_heads) * dim;
  check_tensor({op, "dk", args.dk}, type, {tokens, kv_heads, dim});
  check_tensor({op, "dv", args.dv}, type, {tokens, kv_heads, dim});
  check_tensor({op, "qkv", args.qkv}, type, {tokens, row});
  check_optional({op, "q_norm", args.q_norm}, type, {dim});
  check_optional({op, "k_norm", args.k_norm}, type, {dim});
  check_tensor({op, "positions", args.positions}, DType::i32, {tokens});
  check_tensor({op, "rope", args.rope}, DType::f32, {args.rope.dim(0), dim});
  check_tensor({op, "dqkv", args.dqkv}, type, {tokens, row});
  MILES_CHECK(static_cast<bool>(args.dq_norm) == static_cast<bool>(args.q_norm) &&
                  static_cast<bool>(args.dk_norm) == static_cast<bool>(args.k_norm),
              "{}: a norm and its gradient are given together or not at all", op);
  check_optional({op, "dq_norm", args.dq_norm}, DType::f32, {dim});
  check_optional({op, "dk_norm", args.dk_norm}, DType::f32, {dim});
  check_workspace(op, exec);
  kernels(exec.device.kind()).qkv_split_backward(exec, args);
}

}  // namespace miles
