#include "model/batch.h"

#include <algorithm>

namespace miles {
namespace {

template <class T>
Tensor upload_values(Exec& exec, Arena& arena, const std::vector<T>& values) {
  if (values.empty()) return {};
  const Tensor to = arena.allocate(dtype_of<T>(), {static_cast<int64_t>(values.size())});
  exec.stream.copy(to.data(), values.data(), to.bytes());
  return to;
}

}  // namespace

Tensor upload(Exec& exec, Arena& arena, const std::vector<int32_t>& values) {
  return upload_values(exec, arena, values);
}

Tensor upload(Exec& exec, Arena& arena, const std::vector<float>& values) {
  return upload_values(exec, arena, values);
}

int64_t HostBatch::longest() const {
  int32_t most = 0;
  for (size_t b = 1; b < query_begin.size(); ++b)
    most = std::max(most, query_begin[b] - query_begin[b - 1]);
  return most;
}

void HostBatch::append_packed(const std::vector<int32_t>& sequence) {
  if (query_begin.empty()) query_begin.push_back(0);
  const auto begin = static_cast<int32_t>(tokens());
  kv_begin.push_back(begin);
  context.push_back(static_cast<int32_t>(sequence.size()));
  for (size_t i = 0; i < sequence.size(); ++i) {
    ids.push_back(sequence[i]);
    positions.push_back(static_cast<int32_t>(i));
    slots.push_back(begin + static_cast<int32_t>(i));
  }
  query_begin.push_back(static_cast<int32_t>(tokens()));
}

DeviceBatch upload(Exec& exec, Arena& arena, const HostBatch& batch) {
  return to_device(batch, [&](const auto& values) { return upload(exec, arena, values); });
}

int64_t batch_bytes(int64_t tokens, int64_t sequences, int64_t pages_per_sequence) {
  Arena measure;
  for (int i = 0; i < 3; ++i) measure.allocate(DType::i32, {tokens});  // ids, positions, slots
  // query_begin, context, kv_begin, and runs, which are of two sequences at least, with their keys
  for (int i = 0; i < 5; ++i) measure.allocate(DType::i32, {sequences + 1});
  measure.allocate(DType::i32, {sequences, pages_per_sequence});
  return measure.used();
}

}  // namespace miles
