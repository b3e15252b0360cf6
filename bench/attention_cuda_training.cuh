// One problem of packed sequences, forward and backward.
#pragma once

#include <optional>

#include "bench/attention_cuda_problem.cuh"

namespace miles::cuda {
namespace {

/// A problem's operands on the device, and its gradients.
template <class T>
struct Training {
  Problem e;
  Buffer<T> q, k, v, dout, out, dq, dk, dv;
  Buffer<float> lse;
  Buffer<int32_t> begins, context;
  std::optional<Buffer<unsigned char>> scratch = {};  // of the backward

  explicit Training(const Problem& e)
      : e(e),
        q(normals<T>(e.tokens() * e.heads * e.dim, 1, 1.5F)),
        k(normals<T>(e.tokens() * e.kv_heads * e.dim, 2, 1.5F)),
        v(normals<T>(e.tokens() * e.kv_heads * e.dim, 3)),
        dout(normals<T>(e.tokens() * e.heads * e.dim, 4)),
        out(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()),
        lse(size_t(e.tokens() * e.heads)),
        begins(e.begins()),
        context(e.lengths) {}
  Shape queries() const { return {e.tokens(), e.heads, e.dim}; }
  Shape keys() const { return {e.tokens(), e.kv_heads, e.dim}; }
  void forward() {
    Exec exec = runner().exec();
    cuda::attention(exec, {.q = view(q, queries()),
                           .k_pool = view(k, keys()),
                           .v_pool = view(v, keys()),
                           .query_begin = view(begins, {e.sequences() + 1}),
                           .context = view(context, {e.sequences()}),
                           .page_table = {},
                           .kv_begin = view(begins, {e.sequences()}),
                           .page_size = 0,
                           .scale = e.scale(),
                           .out = view(out, queries()),
                           .lse = view(lse, {e.tokens(), e.heads})});
  }
  void backward(size_t workspace = size_t(kCudaWorkspaceBytes)) {
    Exec exec = runner().exec();
    exec.workspace = exec.workspace.first(workspace);
    cuda::attention_backward(
        exec, {.q = view(q, queries()),
               .k = view(k, keys()),
               .v = view(v, keys()),
               .out = view(out, queries()),
               .lse = view(lse, {e.tokens(), e.heads}),
               .dout = view(dout, queries()),
               .query_begin = view(begins, {e.sequences() + 1}),
               .scale = e.scale(),
               .scratch = scratch ? Tensor(scratch->get(), DType::u8, {int64_t(scratch->size())})
                                  : Tensor{},
               .longest = *std::max_element(e.lengths.begin(), e.lengths.end()),
               .dq = view(dq, queries()),
               .dk = view(dk, keys()),
               .dv = view(dv, keys())});
  }
};

}  // namespace
}  // namespace miles::cuda
