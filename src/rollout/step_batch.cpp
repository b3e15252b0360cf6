#include "rollout/step_batch.h"

#include <algorithm>

namespace miles {
namespace {

void append_tokens(const Piece& piece, HostBatch& batch) {
  const Sequence& sequence = *piece.sequence;
  for (int64_t p = piece.first; p < piece.first + piece.count; ++p) {
    const int64_t page = sequence.pages[static_cast<size_t>(p / batch.page_size)];
    batch.ids.push_back(sequence.tokens[static_cast<size_t>(p)]);
    batch.positions.push_back(static_cast<int32_t>(p));
    batch.slots.push_back(static_cast<int32_t>(page * batch.page_size + p % batch.page_size));
  }
  batch.query_begin.push_back(static_cast<int32_t>(batch.tokens()));
  batch.context.push_back(static_cast<int32_t>(piece.first + piece.count));
}

/// Pages of each piece's keys, in rows as long as the longest; page 0 fills up and is never read.
void append_page_tables(const StepPlan& plan, HostBatch& batch) {
  const auto pages = [&](const Piece& piece) {
    return static_cast<size_t>((piece.first + piece.count + batch.page_size - 1) / batch.page_size);
  };
  size_t longest = 0;
  for (const Piece& piece : plan.pieces) longest = std::max(longest, pages(piece));
  batch.page_table.assign(plan.pieces.size() * longest, 0);
  auto row = batch.page_table.begin();
  for (const Piece& piece : plan.pieces) {
    std::copy_n(piece.sequence->pages.begin(), pages(piece), row);
    row += static_cast<std::ptrdiff_t>(longest);
  }
}

void append_draw(const Sequence& sequence, uint64_t seed, StepBatch& step) {
  const SamplingParams& params = sequence.params;
  if (sequence.stop && sequence.drawn() < params.min_new_tokens)
    for (const int32_t id : sequence.stop->ids())
      step.bans.push_back({.draw = step.draws(), .id = id});
  step.rows.push_back(static_cast<int32_t>(step.tokens.tokens() - 1));
  step.samples.push_back({.temperature = params.temperature,
                          .top_k = params.top_k,
                          .top_p = params.top_p,
                          .min_p = params.min_p,
                          .seed = params.seed.value_or(seed),
                          .stream = static_cast<uint64_t>(sequence.id),
                          .position = static_cast<uint64_t>(sequence.length())});
  step.inverse_temperature.push_back(inverse_temperature(params));
}

}  // namespace

StepBatch make_step_batch(const StepPlan& plan, int64_t page_size, uint64_t seed) {
  StepBatch step;
  step.tokens.page_size = static_cast<int>(page_size);
  step.tokens.query_begin.push_back(0);
  for (const Piece& piece : plan.pieces) {
    append_tokens(piece, step.tokens);
    if (piece.draws()) append_draw(*piece.sequence, seed, step);
  }
  append_page_tables(plan, step.tokens);
  return step;
}

}  // namespace miles
