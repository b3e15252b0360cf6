#include "rollout/step_batch.h"

#include <algorithm>

#include "base/rng.h"
#include "ops/attention.h"

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

/// How many whole tiles of keys two sequences share that decode: those on the pages that their
/// tables begin with alike, but for the keys that they are about to write.
int64_t shared_tiles(const Piece& a, const Piece& b, int64_t page_size) {
  const PageTable &left = a.sequence->pages, &right = b.sequence->pages;
  const auto pages = std::ranges::mismatch(left, right).in1 - left.begin();
  return std::min({pages * page_size, a.first, b.first}) / kAttentionTile;
}

/// Runs of decoding neighbours that share keys, where that saves enough reads.
void append_shared(const StepPlan& plan, HostBatch& batch) {
  // Of so many tiles one must be saved, or the second kernel that sharing takes costs more.
  constexpr int64_t kTilesOfOneSaved = 8;
  const std::vector<Piece>& pieces = plan.pieces;
  batch.shared_keys.assign(pieces.size(), 0);
  int64_t all = 0, saved = 0;
  for (const Piece& piece : pieces)
    all += (piece.first + piece.count + kAttentionTile - 1) / kAttentionTile;
  for (size_t first = 0, end = 1; first < pieces.size(); first = end++) {
    int64_t tiles = 0;
    const auto joins = [&](const Piece& piece) {
      if (pieces[first].count > 1 || piece.count > 1) return false;
      const int64_t common = shared_tiles(pieces[first], piece, batch.page_size);
      if (tiles == 0) tiles = common;
      return common > 0 && common >= tiles;
    };
    while (end < pieces.size() && end - first < kAttentionRun && joins(pieces[end])) ++end;
    if (end - first == 1) continue;
    const auto count = static_cast<int64_t>(end - first);
    batch.shared_runs.insert(batch.shared_runs.end(),
                             {static_cast<int32_t>(first), static_cast<int32_t>(count)});
    std::fill_n(batch.shared_keys.begin() + static_cast<std::ptrdiff_t>(first), count,
                static_cast<int32_t>(tiles * kAttentionTile));
    saved += tiles * (count - 1);
  }
  if (saved * kTilesOfOneSaved >= all) return;
  batch.shared_runs.clear();
  batch.shared_keys.clear();
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
                          .uniform = uniform(params.seed.value_or(seed), RngUse::sampling,
                                             static_cast<uint64_t>(sequence.id),
                                             static_cast<uint64_t>(sequence.length()))});
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
  append_shared(plan, step.tokens);
  return step;
}

StepBatch padded_step(const StepBatch& step, int64_t sequences, int64_t pages) {
  MILES_CHECK(step.is_decode(), "{} tokens of {} sequences with {} draws to pad",
              step.tokens.tokens(), step.tokens.sequences(), step.draws());
  StepBatch padded = step;
  HostBatch& batch = padded.tokens;
  const int64_t real = batch.sequences();
  const int64_t width = static_cast<int64_t>(batch.page_table.size()) / real;
  MILES_CHECK(sequences >= real && pages >= width, "{} x {} to pad to {} x {}", real, width,
              sequences, pages);
  for (int64_t i = real; i < sequences; ++i) {
    batch.ids.push_back(0);
    batch.positions.push_back(0);
    batch.slots.push_back(-1);
    batch.query_begin.push_back(static_cast<int32_t>(i + 1));
    batch.context.push_back(1);
    padded.rows.push_back(static_cast<int32_t>(i));
    padded.samples.push_back({.temperature = 0});
    padded.inverse_temperature.push_back(1);
  }
  if (batch.shares()) {
    batch.shared_runs.resize(static_cast<size_t>(sequences / 2 * 2), 0);
    batch.shared_keys.resize(static_cast<size_t>(sequences), 0);
  }
  batch.page_table.assign(static_cast<size_t>(sequences * pages), 0);
  for (int64_t i = 0; i < real; ++i)
    std::copy_n(step.tokens.page_table.begin() + i * width, width,
                batch.page_table.begin() + i * pages);
  return padded;
}

}  // namespace miles
