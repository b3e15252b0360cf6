// Prompts that several sequences share: the n samples of one group. The first of a group to start
// computes the prompt (the leader) while the others wait; then they take its pages. Only tokens
// [0, P − 1) are shared: each sample computes its last prompt token itself, and so draws from its
// own row. Nothing is kept longer than some sequence of the group waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "rollout/block_manager.h"
#include "rollout/sequence.h"

namespace miles {

class PromptCache {
 public:
  explicit PromptCache(BlockManager& blocks) : blocks_(blocks) {}

  /// `sequence` begins to wait. One with nothing to share (a prompt of one token, or another prompt
  /// than its group's) leaves its group for good.
  void begin_wait(Sequence& sequence);
  /// It waits no longer: it was started or given up.
  void end_wait(const Sequence& sequence);

  /// Whether the prompt is just being computed by another.
  bool must_wait(const Sequence& sequence) const;
  /// Gives a sequence that holds no pages those of its prompt, where there are any, and sets
  /// `computed` to match.
  void attach(Sequence& sequence);
  /// It runs now, as its group's leader when the prompt has yet to be computed.
  void start(const Sequence& sequence);
  /// Some of its tokens have been computed: keeps its prompt for those that wait.
  void advance(const Sequence& sequence);
  /// It runs no longer.
  void stop(const Sequence& sequence);

  /// Gives the pages of one kept prompt back, of one that no running sequence uses. False: there is
  /// none.
  bool drop_unused();
  /// Gives the pages of every kept prompt back. False: there were none.
  bool drop_all();
  /// Prompts kept.
  int64_t kept() const;

 private:
  struct Group {
    std::vector<int32_t> prompt;       // its tokens
    int64_t waiting = 0;               // sequences that wait
    const Sequence* leader = nullptr;  // the one that computes the prompt
    PageTable pages;                   // of prompt[0, P − 1), once computed and while some wait
  };
  void tidy(int64_t key);

  BlockManager& blocks_;
  std::map<int64_t, Group> groups_;  // by Sequence::group; those with a leader or with some waiting
};

}  // namespace miles
