// Continuous batching: which tokens of which sequences the next forward computes. Running sequences
// go first, oldest first; long ones are prefilled in chunks; when pages run out the newest gives
// its own back and starts over later, keeping what it has drawn. Pure bookkeeping: no device, no
// model.
//
// A token that is being drawn counts as a sequence's last one: where it goes does not depend on
// what it is. Pages that are given back may be written again by the very next plan, since steps run
// one after the other. Sources: Yu et al. 2022 (Orca, iteration-level scheduling); Agrawal et al.
// 2023 (Sarathi, chunked prefill, arXiv:2308.16369).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rollout/block_manager.h"
#include "rollout/prompt_cache.h"
#include "rollout/sequence.h"

namespace miles {

struct SchedulerOptions {
  int64_t pages = 0;              // capacity of the key/value cache
  int64_t page_size = 16;         // tokens
  int64_t max_running = 64;       // sequences that hold pages at once
  int64_t chunked_prefill = 512;  // tokens of prefill a step; decode tokens come on top
};

/// Tokens [first, first + count) of a sequence, to be computed in one step.
struct Piece {
  Sequence* sequence = nullptr;  // not owned
  int64_t first = 0;             // tokens
  int64_t count = 0;             // tokens, at least 1

  /// Whether a token is drawn after the piece. Meaningful until that one has been appended.
  bool draws() const { return first + count == sequence->length(); }
};

/// One step: at most chunked_prefill + max_running tokens of at most max_running sequences.
struct StepPlan {
  std::vector<PageCopy> copies;  // to be made, in order, before the forward
  std::vector<Piece> pieces;     // those of a group side by side
  int64_t prefill_tokens = 0;    // tokens in pieces of sequences that lack more than one
  int64_t decode_tokens = 0;     // the other tokens
  int64_t preempted = 0;         // sequences that lost their pages
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;  // prompts_ refers to blocks_
  Scheduler& operator=(const Scheduler&) = delete;

  /// Whether a sequence with keys of that many tokens fits when it is alone.
  bool fits(int64_t tokens) const { return blocks_.pages_for(tokens) <= blocks_.pages(); }

  /// Puts a sequence that fits() at the end of the queue.
  void add(std::unique_ptr<Sequence> sequence);
  /// The next step; without pieces only when there is nothing left to do. Sequences of their full
  /// length give their pages back and are not in it; they stay until they are removed.
  StepPlan schedule();
  /// The plan's keys and values are in the cache, or will be before the next plan's. Comes before
  /// any token is appended.
  void commit(const StepPlan& plan);
  /// Takes a sequence out; its pages are given back.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);
  /// Takes every sequence out, in order of arrival; all pages are free afterwards.
  std::vector<std::unique_ptr<Sequence>> remove_all();

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  bool empty() const { return waiting_.empty() && running_.empty() && complete_.empty(); }
  const BlockManager& blocks() const { return blocks_; }
  const PromptCache& prompts() const { return prompts_; }

 private:
  void retire_complete();
  int64_t tokens_now(const Sequence& sequence, int64_t prefill_left) const;
  void plan_piece(Sequence& sequence, StepPlan& plan) const;
  bool grow(Sequence& sequence, StepPlan& plan);
  void admit(StepPlan& plan);
  bool start(Sequence& sequence, StepPlan& plan);
  void preempt_newest();

  SchedulerOptions options_;
  BlockManager blocks_;
  PromptCache prompts_{blocks_};
  std::deque<std::unique_ptr<Sequence>> waiting_;    // the first is started next
  std::vector<std::unique_ptr<Sequence>> running_;   // oldest start first
  std::vector<std::unique_ptr<Sequence>> complete_;  // of their full length; hold no pages
};

}  // namespace miles
