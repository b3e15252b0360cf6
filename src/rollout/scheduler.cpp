#include "rollout/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace miles {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), blocks_(options.pages, options.page_size) {
  MILES_CHECK(options.max_running > 0 && options.chunked_prefill > 0,
              "{} running sequences, {} tokens of prefill", options.max_running,
              options.chunked_prefill);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  MILES_CHECK(sequence->prompt_length > 0 && fits(sequence->length()), "sequence of {} tokens",
              sequence->length());
  prompts_.begin_wait(*sequence);
  waiting_.push_back(std::move(sequence));
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  retire_complete();
  // A sequence that must give up its pages is always the last, so one that has been planned stays.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (tokens_now(sequence, options_.chunked_prefill - plan.prefill_tokens) == 0) continue;
    if (grow(sequence, plan)) plan_piece(sequence, plan);
  }
  if (plan.preempted == 0) admit(plan);
  // A group side by side, so that attention can read its prompt once for several.
  std::ranges::stable_sort(plan.pieces, {},
                           [](const Piece& piece) { return piece.sequence->group; });
  MILES_CHECK(!plan.pieces.empty() || (running_.empty() && waiting_.empty()),
              "{} wait and {} run, and no step is possible", waiting_.size(), running_.size());
  return plan;
}

/// The last token's key is never needed: a sequence of its full length is done but for that token.
void Scheduler::retire_complete() {
  const auto first = std::stable_partition(
      running_.begin(), running_.end(),
      [](const auto& sequence) { return sequence->length() < sequence->max_length; });
  for (auto each = first; each != running_.end(); ++each) {
    prompts_.stop(**each);
    blocks_.release((*each)->pages);
    complete_.push_back(std::move(*each));
  }
  running_.erase(first, running_.end());
}

/// A sequence that lacks one token is decoding (or about to) and never held up by others' prefill.
int64_t Scheduler::tokens_now(const Sequence& sequence, int64_t prefill_left) const {
  const int64_t lacking = sequence.length() - sequence.computed;
  return lacking == 1 ? 1 : std::min(lacking, prefill_left);
}

void Scheduler::plan_piece(Sequence& sequence, StepPlan& plan) const {
  const int64_t count = tokens_now(sequence, options_.chunked_prefill - plan.prefill_tokens);
  const bool decodes = sequence.length() - sequence.computed == 1;
  (decodes ? plan.decode_tokens : plan.prefill_tokens) += count;
  plan.pieces.push_back({.sequence = &sequence, .first = sequence.computed, .count = count});
}

/// Makes all that the sequence lacks writable, at other sequences' cost if need be. False: the
/// sequence itself was the newest, and runs no longer.
bool Scheduler::grow(Sequence& sequence, StepPlan& plan) {
  while (
      !blocks_.make_writable(sequence.pages, sequence.computed, sequence.length(), plan.copies)) {
    if (prompts_.drop_unused()) continue;
    if (running_.size() == 1) {
      MILES_CHECK(prompts_.drop_all(), "a sequence of {} tokens does not fit in {} pages",
                  sequence.length(), blocks_.pages());
      continue;
    }
    const bool itself = running_.back().get() == &sequence;
    preempt_newest();
    ++plan.preempted;
    if (itself) return false;
  }
  return true;
}

void Scheduler::preempt_newest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  prompts_.stop(*sequence);
  blocks_.release(sequence->pages);
  sequence->computed = 0;
  ++sequence->preemptions;
  prompts_.begin_wait(*sequence);
  waiting_.push_front(std::move(sequence));
}

void Scheduler::admit(StepPlan& plan) {
  for (auto next = waiting_.begin(); next != waiting_.end() && running() < options_.max_running;) {
    if (prompts_.must_wait(**next)) {
      ++next;
      continue;
    }
    if (!start(**next, plan)) return;  // those behind do not overtake
    running_.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
}

/// Starts a waiting sequence if its pages are there, and one to spare for each that runs already:
/// whoever starts into a full cache is thrown out again.
bool Scheduler::start(Sequence& sequence, StepPlan& plan) {
  for (;;) {
    prompts_.attach(sequence);
    const bool budget = tokens_now(sequence, options_.chunked_prefill - plan.prefill_tokens) > 0;
    const int64_t pages =
        blocks_.pages_to_write(sequence.pages, sequence.computed, sequence.length());
    if (budget && pages + running() <= blocks_.free_pages()) break;
    blocks_.release(sequence.pages);
    sequence.computed = 0;
    if (!budget || !running_.empty() || !prompts_.drop_unused()) return false;
  }
  blocks_.make_writable(sequence.pages, sequence.computed, sequence.length(), plan.copies);
  if (sequence.preemptions == 0) sequence.cached_tokens = sequence.computed;
  prompts_.start(sequence);
  plan_piece(sequence, plan);
  return true;
}

void Scheduler::commit(const StepPlan& plan) {
  for (const Piece& piece : plan.pieces) {
    piece.sequence->computed += piece.count;
    prompts_.advance(*piece.sequence);
  }
}

std::unique_ptr<Sequence> Scheduler::remove(const Sequence& sequence) {
  const auto take_from = [&](auto& list) -> std::unique_ptr<Sequence> {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const auto& held) { return held.get() == &sequence; });
    if (found == list.end()) return nullptr;
    std::unique_ptr<Sequence> taken = std::move(*found);
    list.erase(found);
    return taken;
  };
  if (auto taken = take_from(complete_)) return taken;
  if (auto taken = take_from(running_)) {
    prompts_.stop(*taken);
    blocks_.release(taken->pages);
    return taken;
  }
  auto taken = take_from(waiting_);  // preempted while its last token was being drawn
  MILES_CHECK(taken, "sequence {} is not here", sequence.ticket);
  prompts_.end_wait(*taken);
  return taken;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_all() {
  std::vector<std::unique_ptr<Sequence>> all;
  while (!complete_.empty()) all.push_back(remove(*complete_.back()));
  while (!running_.empty()) all.push_back(remove(*running_.back()));
  for (std::unique_ptr<Sequence>& sequence : waiting_) {
    prompts_.end_wait(*sequence);
    all.push_back(std::move(sequence));
  }
  waiting_.clear();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a->ticket < b->ticket; });
  MILES_CHECK(blocks_.free_pages() == blocks_.pages() && prompts_.kept() == 0,
              "{} of {} pages are held by nobody", blocks_.pages() - blocks_.free_pages(),
              blocks_.pages());
  return all;
}

}  // namespace miles
