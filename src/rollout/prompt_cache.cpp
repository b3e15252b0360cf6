#include "rollout/prompt_cache.h"

#include <algorithm>

#include "base/error.h"

namespace miles {

void PromptCache::begin_wait(Sequence& sequence) {
  if (sequence.prompt_length < 2) sequence.group = kNoGroup;
  if (sequence.group == kNoGroup) return;
  const auto begin = sequence.tokens.begin(), end = begin + sequence.prompt_length;
  const auto [found, is_new] = groups_.try_emplace(sequence.group);
  Group& group = found->second;
  if (is_new) {
    group.prompt.assign(begin, end);
  } else if (!std::equal(begin, end, group.prompt.begin(), group.prompt.end())) {
    sequence.group = kNoGroup;
    return;
  }
  ++group.waiting;
}

void PromptCache::end_wait(const Sequence& sequence) {
  if (sequence.group == kNoGroup) return;
  Group& group = groups_.at(sequence.group);
  MILES_CHECK(group.waiting > 0, "group {} has none waiting", sequence.group);
  --group.waiting;
  tidy(sequence.group);
}

bool PromptCache::must_wait(const Sequence& sequence) const {
  if (sequence.group == kNoGroup) return false;
  const Group& group = groups_.at(sequence.group);
  return group.leader != nullptr && group.pages.empty();
}

void PromptCache::attach(Sequence& sequence) {
  MILES_CHECK(sequence.pages.empty(), "sequence {} holds pages", sequence.ticket);
  sequence.computed = 0;
  if (sequence.group == kNoGroup) return;
  const Group& group = groups_.at(sequence.group);
  if (group.pages.empty()) return;
  sequence.computed = sequence.prompt_length - 1;
  sequence.pages = blocks_.share(group.pages, sequence.computed);
}

void PromptCache::start(const Sequence& sequence) {
  if (sequence.group == kNoGroup) return;
  Group& group = groups_.at(sequence.group);
  if (group.pages.empty()) group.leader = &sequence;
  end_wait(sequence);
}

void PromptCache::advance(const Sequence& sequence) {
  const auto found = groups_.find(sequence.group);
  if (found == groups_.end() || found->second.leader != &sequence) return;
  const int64_t shared = sequence.prompt_length - 1;
  if (sequence.computed < shared) return;
  found->second.leader = nullptr;
  if (found->second.waiting > 0) found->second.pages = blocks_.share(sequence.pages, shared);
  tidy(sequence.group);
}

void PromptCache::stop(const Sequence& sequence) {
  const auto found = groups_.find(sequence.group);
  if (found == groups_.end() || found->second.leader != &sequence) return;
  found->second.leader = nullptr;
  tidy(sequence.group);
}

bool PromptCache::drop_unused() {
  for (auto& [key, group] : groups_) {
    if (group.pages.empty() || blocks_.references(group.pages.front()) > 1) continue;
    blocks_.release(group.pages);
    return true;
  }
  return false;
}

bool PromptCache::drop_all() {
  bool dropped = false;
  for (auto& [key, group] : groups_) {
    dropped = dropped || !group.pages.empty();
    blocks_.release(group.pages);
  }
  return dropped;
}

int64_t PromptCache::kept() const {
  return std::count_if(groups_.begin(), groups_.end(),
                       [](const auto& entry) { return !entry.second.pages.empty(); });
}

/// Forgets what nobody waits for.
void PromptCache::tidy(int64_t key) {
  const auto found = groups_.find(key);
  Group& group = found->second;
  if (group.waiting > 0) return;
  blocks_.release(group.pages);
  if (group.leader == nullptr) groups_.erase(found);
}

}  // namespace miles
