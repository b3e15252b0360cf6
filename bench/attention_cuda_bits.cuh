// Whether a row's bits are its own: the same whole, in chunks, token by token, paged or packed, and
// whatever keys come later.
#pragma once

#include "bench/attention_cuda_training.cuh"

namespace miles::cuda {
namespace {

struct Piece {
  int sequence, first, count;  // tokens
};

/// Where keys and values are: packed, or on shuffled pages whose unused slots are NaN.
struct Pool {
  Buffer<bf16> k, v;
  std::vector<std::vector<int32_t>> pages;  // of each sequence; empty: packed
  int page_size = 0;
};

struct Rows {
  std::vector<bf16> out;
  std::vector<float> lse;
};

class Bits {
 public:
  explicit Bits(const Problem& e)
      : e_(e), t_(e), q_(t_.q.host()), k_(t_.k.host()), v_(t_.v.host()), begins_(e.begins()) {
    t_.forward();
    base_ = {t_.out.host(), t_.lse.host()};
  }

  Pool packed() const { return {Buffer<bf16>(k_), Buffer<bf16>(v_), {}, 0}; }
  Pool paged(int page_size, uint64_t seed) const {
    int64_t count = 3;
    for (const int length : e_.lengths) count += (length + page_size - 1) / page_size;
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    const auto row = static_cast<size_t>(e_.kv_heads * e_.dim);
    std::vector<bf16> k(size_t(count * page_size) * row, __float2bfloat16(NAN)), v = k;
    std::vector<std::vector<int32_t>> pages(e_.lengths.size());
    size_t next = 0;
    for (size_t b = 0; b < e_.lengths.size(); ++b)
      for (int key = 0; key < e_.lengths[b]; ++key) {
        if (key % page_size == 0) pages[b].push_back(order[next++]);
        const auto to = size_t(pages[b].back() * page_size + key % page_size) * row;
        const auto from = size_t(begins_[b] + key) * row;
        std::copy_n(k_.begin() + from, row, k.begin() + to);
        std::copy_n(v_.begin() + from, row, v.begin() + to);
      }
    return {Buffer<bf16>(k), Buffer<bf16>(v), pages, page_size};
  }
  /// Packed, with the keys and values of tokens from `first` on put to x.
  Pool spoiled(int first, float x) const {
    auto k = k_, v = v_;
    const auto row = static_cast<size_t>(e_.kv_heads * e_.dim);
    for (size_t b = 0; b < e_.lengths.size(); ++b)
      for (int key = first; key < e_.lengths[b]; ++key) {
        const auto at = size_t(begins_[b] + key) * row;
        for (size_t i = 0; i < row; ++i) k[at + i] = v[at + i] = __float2bfloat16(x);
      }
    return {Buffer<bf16>(k), Buffer<bf16>(v), {}, 0};
  }

  /// How many rows differ from the packed whole, of those of tokens before `end`.
  int64_t differing(const Pool& pool, const std::vector<Piece>& pieces, int end = INT32_MAX) {
    const Rows rows = run(pool, pieces);
    const auto dim = static_cast<size_t>(e_.dim), heads = static_cast<size_t>(e_.heads);
    int64_t count = 0;
    size_t row = 0;
    for (const Piece& p : pieces)
      for (int token = p.first; token < p.first + p.count; ++token)
        for (size_t h = 0; h < heads; ++h, ++row) {
          const size_t at = size_t(begins_[size_t(p.sequence)] + token) * heads + h;
          count +=
              token < end && (std::memcmp(&rows.out[row * dim], &base_.out[at * dim], 2 * dim) ||
                              std::memcmp(&rows.lse[row], &base_.lse[at], 4));
        }
    return count;
  }
  std::vector<Piece> wholes() const {
    std::vector<Piece> pieces;
    for (size_t b = 0; b < e_.lengths.size(); ++b) pieces.push_back({int(b), 0, e_.lengths[b]});
    return pieces;
  }

 private:
  Rows run(const Pool& pool, const std::vector<Piece>& pieces) {
    const auto row = static_cast<size_t>(e_.heads * e_.dim);
    std::vector<bf16> q;
    std::vector<int32_t> begin = {0}, context, kv_begin, table;
    size_t longest = 1;
    for (const auto& pages : pool.pages) longest = std::max(longest, pages.size());
    for (const Piece& p : pieces) {
      const auto b = size_t(p.sequence);
      const auto from = q_.begin() + ptrdiff_t(size_t(begins_[b] + p.first) * row);
      q.insert(q.end(), from, from + ptrdiff_t(size_t(p.count) * row));
      begin.push_back(begin.back() + p.count);
      context.push_back(p.first + p.count);
      kv_begin.push_back(begins_[b]);
      if (pool.pages.empty()) continue;
      table.insert(table.end(), pool.pages[b].begin(), pool.pages[b].end());
      table.resize(context.size() * longest, 1 << 30);  // an address nobody may touch
    }
    const int64_t tokens = begin.back(), sequences = int64_t(context.size());
    const Buffer<bf16> d_q(q), out(q.size());
    const Buffer<float> lse(size_t(tokens * e_.heads));
    const Buffer<int32_t> d_begin(begin), d_context(context), d_kv_begin(kv_begin), d_table(table);
    const Shape keys = {int64_t(pool.k.size()) / (e_.kv_heads * e_.dim), e_.kv_heads, e_.dim};
    Exec exec = runner().exec();
    cuda::attention(
        exec,
        {.q = view(d_q, {tokens, e_.heads, e_.dim}),
         .k_pool = view(pool.k, keys),
         .v_pool = view(pool.v, keys),
         .query_begin = view(d_begin, {sequences + 1}),
         .context = view(d_context, {sequences}),
         .page_table = table.empty() ? Tensor() : view(d_table, {sequences, int64_t(longest)}),
         .kv_begin = table.empty() ? view(d_kv_begin, {sequences}) : Tensor(),
         .page_size = pool.page_size,
         .scale = e_.scale(),
         .out = view(out, {tokens, e_.heads, e_.dim}),
         .lse = view(lse, {tokens, e_.heads})});
    return {out.host(), lse.host()};
  }

  Problem e_;
  Training<bf16> t_;
  std::vector<bf16> q_, k_, v_;
  std::vector<int32_t> begins_;
  Rows base_;
};

}  // namespace
}  // namespace miles::cuda
