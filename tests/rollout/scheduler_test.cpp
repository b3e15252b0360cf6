#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"

namespace miles {
namespace {

struct Spec {
  int64_t prompt = 1;    // tokens
  int64_t response = 1;  // tokens
  int64_t group = kNoGroup;
  int64_t stop = INT64_MAX;  // tokens of the response after which it ends all the same
};

/// A cache without a device: what each row of each page holds, written as the plans say, so that a
/// sequence that reads another's keys is caught.
class PaperCache {
 public:
  PaperCache(int64_t pages, int64_t page_size)
      : page_size_(page_size), rows_(static_cast<size_t>(pages * page_size), kNothing) {}

  void run(const StepPlan& plan) {
    for (const PageCopy& copy : plan.copies)
      std::copy_n(rows_.begin() + copy.from * page_size_, page_size_,
                  rows_.begin() + copy.to * page_size_);
    std::set<int64_t> written;
    for (const Piece& piece : plan.pieces)
      for (int64_t p = piece.first; p < piece.first + piece.count; ++p) {
        ASSERT_TRUE(written.insert(row(*piece.sequence, p)).second) << "two write one row";
        rows_[static_cast<size_t>(row(*piece.sequence, p))] =
            piece.sequence->tokens[static_cast<size_t>(p)];
      }
    for (const Piece& piece : plan.pieces)
      for (int64_t p = 0; p < piece.first + piece.count; ++p)
        ASSERT_EQ(rows_[static_cast<size_t>(row(*piece.sequence, p))],
                  piece.sequence->tokens[static_cast<size_t>(p)])
            << "sequence " << piece.sequence->ticket << " at position " << p;
  }

 private:
  static constexpr int32_t kNothing = -1;
  int64_t row(const Sequence& sequence, int64_t position) const {
    return sequence.pages[static_cast<size_t>(position / page_size_)] * page_size_ +
           position % page_size_;
  }

  int64_t page_size_;
  std::vector<int32_t> rows_;
};

/// Whether an end is known before the next step is planned.
enum class Ends { known, known_late };

/// Runs sequences to their ends without a model: the token at a position is a function of ticket
/// and position, or of group and position in a shared prompt.
class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options, Ends ends = Ends::known)
      : options_(options),
        ends_(ends),
        scheduler_(options),
        cache_(options.pages, options.page_size) {}

  void add(const Spec& spec) {
    auto sequence = std::make_unique<Sequence>();
    sequence->ticket = tickets_++;
    sequence->group = spec.group;
    sequence->prompt_length = spec.prompt;
    sequence->max_length = spec.prompt + spec.response;
    if (spec.stop < spec.response) stops_[sequence->ticket] = spec.prompt + spec.stop;
    const int64_t owner = spec.group == kNoGroup ? 1000 + sequence->ticket : spec.group;
    for (int64_t p = 0; p < spec.prompt; ++p) sequence->tokens.push_back(token(owner, p));
    scheduler_.add(std::move(sequence));
  }

  StepPlan step() {
    StepPlan plan = scheduler_.schedule();
    check(plan);
    cache_.run(plan);
    scheduler_.commit(plan);
    prefilled_ += plan.prefill_tokens;
    preempted_ += plan.preempted;
    std::vector<Sequence*> draw;
    for (const Piece& piece : plan.pieces)
      if (piece.draws()) draw.push_back(piece.sequence);
    if (ends_ == Ends::known_late) end(drawn_, &draw);
    for (Sequence* sequence : draw)
      sequence->tokens.push_back(token(1000 + sequence->ticket, sequence->length()));
    if (ends_ == Ends::known) end(draw, nullptr);
    drawn_ = draw;
    return plan;
  }

  /// Steps until nothing is left; fails when that takes too many.
  void run(int64_t most_steps = 100000) {
    for (int64_t i = 0; i < most_steps && !scheduler_.empty(); ++i) step();
    ASSERT_TRUE(scheduler_.empty()) << "no end in sight";
    ASSERT_EQ(std::ssize(ended_), tickets_);
    ASSERT_EQ(scheduler_.blocks().free_pages(), options_.pages) << "pages leaked";
    ASSERT_EQ(scheduler_.prompts().kept(), 0);
  }

  Scheduler& scheduler() { return scheduler_; }
  const std::vector<std::unique_ptr<Sequence>>& ended() const { return ended_; }
  int64_t prefilled() const { return prefilled_; }
  int64_t preempted() const { return preempted_; }

 private:
  /// Takes out those of `drawn` that have ended, and what `next` would draw for them.
  void end(const std::vector<Sequence*>& drawn, std::vector<Sequence*>* next) {
    for (Sequence* sequence : drawn) {
      const auto stop = stops_.find(sequence->ticket);
      const bool stopped = stop != stops_.end() && sequence->length() == stop->second;
      if (!stopped && sequence->length() < sequence->max_length) continue;
      if (next != nullptr) std::erase(*next, sequence);
      ended_.push_back(scheduler_.remove(*sequence));
      EXPECT_TRUE(ended_.back()->pages.empty());
    }
  }

  static int32_t token(int64_t owner, int64_t position) {
    return static_cast<int32_t>(owner * 10000 + position);
  }

  void check(const StepPlan& plan) const {
    int64_t tokens = 0;
    std::set<const Sequence*> seen;
    std::set<int64_t> groups;
    const Sequence* before = nullptr;
    for (const Piece& piece : plan.pieces) {
      if (before == nullptr || piece.sequence->group != before->group) {
        EXPECT_TRUE(groups.insert(piece.sequence->group).second) << "a group is not side by side";
      }
      before = piece.sequence;
      EXPECT_TRUE(seen.insert(piece.sequence).second);
      EXPECT_EQ(piece.first, piece.sequence->computed);
      EXPECT_GE(piece.count, 1);
      EXPECT_LE(piece.first + piece.count, piece.sequence->length());
      tokens += piece.count;
    }
    EXPECT_EQ(tokens, plan.prefill_tokens + plan.decode_tokens);
    EXPECT_LE(plan.prefill_tokens, options_.chunked_prefill);
    EXPECT_LE(plan.decode_tokens, options_.max_running);
    EXPECT_LE(scheduler_.running(), options_.max_running);
  }

  SchedulerOptions options_;
  Ends ends_;
  Scheduler scheduler_;
  PaperCache cache_;
  std::vector<std::unique_ptr<Sequence>> ended_;
  std::vector<Sequence*> drawn_;      // by the latest step
  std::map<int64_t, int64_t> stops_;  // length at which it ends, by ticket
  int64_t tickets_ = 0, prefilled_ = 0, preempted_ = 0;
};

TEST(Scheduler, PrefillsInChunksWhileOthersDecode) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 4, .chunked_prefill = 8});
  simulation.add({.prompt = 3, .response = 10});
  StepPlan plan = simulation.step();
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_TRUE(plan.prefill_tokens == 3 && plan.decode_tokens == 0);
  simulation.add({.prompt = 20, .response = 2});
  for (const int64_t expected : {8, 8, 4}) {
    plan = simulation.step();
    ASSERT_EQ(plan.pieces.size(), 2U);
    EXPECT_EQ(plan.decode_tokens, 1);
    EXPECT_EQ(plan.prefill_tokens, expected);
  }
  plan = simulation.step();
  EXPECT_EQ(plan.decode_tokens, 2);
  simulation.run();
}

TEST(Scheduler, NeverRunsMoreThanItsLimitAndKeepsTheOrderOfArrival) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 2, .chunked_prefill = 64});
  for (int i = 0; i < 7; ++i) simulation.add({.prompt = 5, .response = 3});
  simulation.run();
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(simulation.ended()[static_cast<size_t>(i)]->ticket, i);
}

TEST(Scheduler, AGroupComputesItsPromptOnce) {
  // 21 tokens: 20 are shared, in 5 full pages; each sample computes the last by itself.
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 8});
  for (int i = 0; i < 8; ++i) simulation.add({.prompt = 21, .response = 6, .group = 3});
  simulation.run();
  EXPECT_EQ(simulation.prefilled(), 21);
  int64_t cached = 0;
  for (const auto& sequence : simulation.ended()) cached += sequence->cached_tokens;
  EXPECT_EQ(cached, 7 * 20);
}

TEST(Scheduler, ThePagesOfASharedPromptAreHeldOnce) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 64});
  for (int i = 0; i < 8; ++i) simulation.add({.prompt = 39, .response = 3, .group = 0});
  simulation.step();  // one computes the prompt
  const StepPlan plan = simulation.step();
  EXPECT_EQ(plan.pieces.size(), 8U);
  // 38 shared tokens: 9 full pages held once. The last page, half full, is each one's own.
  EXPECT_EQ(100 - simulation.scheduler().blocks().free_pages(), 9 + 8);
  EXPECT_EQ(plan.copies.size(), 8U);
  simulation.run();
}

TEST(Scheduler, AGroupIsSideBySideThoughItsLeaderStartsBefore) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 64});
  for (const int64_t group : {7, 7, 7, 2, 2, 2})
    simulation.add({.prompt = 20, .response = 3, .group = group});
  EXPECT_EQ(simulation.step().pieces.size(), 2U);
  std::vector<int64_t> groups;
  for (const Piece& piece : simulation.step().pieces) groups.push_back(piece.sequence->group);
  EXPECT_EQ(groups, (std::vector<int64_t>{2, 2, 2, 7, 7, 7}));
  simulation.run();
}

TEST(Scheduler, SharingSurvivesALeaderThatEndsWithItsFirstToken) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 64});
  simulation.add({.prompt = 30, .response = 1, .group = 0});
  for (int i = 0; i < 3; ++i) simulation.add({.prompt = 30, .response = 4, .group = 0});
  simulation.run();
  EXPECT_EQ(simulation.prefilled(), 30);
}

TEST(Scheduler, AGroupThatMixesPromptsSharesOnlyWhatIsEqual) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 64});
  simulation.add({.prompt = 30, .response = 3, .group = 0});
  simulation.add({.prompt = 30, .response = 3, .group = 0});
  simulation.add({.prompt = 20, .response = 3, .group = 0});
  simulation.run();
  EXPECT_EQ(simulation.prefilled(), 30 + 20);
}

TEST(Scheduler, WaitingForALeaderHoldsUpNoOtherGroup) {
  Simulation simulation({.pages = 100, .page_size = 4, .max_running = 16, .chunked_prefill = 64});
  for (const int64_t group : {0, 0, 1, 1})
    simulation.add({.prompt = 20, .response = 3, .group = group});
  EXPECT_EQ(simulation.step().pieces.size(), 2U);
  EXPECT_EQ(simulation.step().pieces.size(), 4U);
  simulation.run();
}

TEST(Scheduler, TheNewestGivesWayWhenPagesRunOutAndKeepsItsTokens) {
  Simulation simulation({.pages = 8, .page_size = 2, .max_running = 4, .chunked_prefill = 64});
  for (int i = 0; i < 3; ++i) simulation.add({.prompt = 3, .response = 9});
  simulation.run();
  EXPECT_GT(simulation.preempted(), 0);
  EXPECT_EQ(simulation.ended().front()->ticket, 0);
  EXPECT_EQ(simulation.ended().front()->preemptions, 0);
  EXPECT_GT(simulation.ended().back()->preemptions, 0);
  for (const auto& sequence : simulation.ended()) EXPECT_EQ(sequence->length(), 12);
}

TEST(Scheduler, ASequenceAsLargeAsTheCacheRunsAndALargerOneDoesNotFit) {
  Simulation simulation({.pages = 4, .page_size = 4, .max_running = 4, .chunked_prefill = 5});
  EXPECT_TRUE(simulation.scheduler().fits(16));
  EXPECT_FALSE(simulation.scheduler().fits(17));
  // The last token's key is never needed: 17 tokens take 16 keys. A group's kept prompt gives way.
  for (int i = 0; i < 3; ++i) simulation.add({.prompt = 10, .response = 7, .group = 0});
  simulation.run();
}

TEST(Scheduler, ASequenceOfItsFullLengthMakesRoomBeforeItIsTakenOut) {
  Simulation simulation({.pages = 3, .page_size = 4, .max_running = 1, .chunked_prefill = 8},
                        Ends::known_late);
  for (int i = 0; i < 2; ++i) simulation.add({.prompt = 8, .response = 2});
  for (const int64_t prefill : {8, 0, 8, 0}) {  // no step between them is without a piece
    const StepPlan plan = simulation.step();
    ASSERT_EQ(plan.pieces.size(), 1U);
    EXPECT_EQ(plan.prefill_tokens, prefill);
  }
  EXPECT_EQ(std::ssize(simulation.ended()), 1);
  EXPECT_TRUE(simulation.step().pieces.empty());
  EXPECT_TRUE(simulation.scheduler().empty());
}

TEST(Scheduler, TakingEverythingOutFreesEveryPage) {
  Simulation simulation({.pages = 40, .page_size = 2, .max_running = 6, .chunked_prefill = 16});
  for (int64_t i = 0; i < 12; ++i) simulation.add({.prompt = 9, .response = 9, .group = i / 4});
  for (int i = 0; i < 5; ++i) simulation.step();
  const auto all = simulation.scheduler().remove_all();
  ASSERT_EQ(all.size() + simulation.ended().size(), 12U);
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, [](const auto& s) { return s->ticket; }));
  EXPECT_EQ(simulation.scheduler().blocks().free_pages(), 40);
  EXPECT_TRUE(simulation.scheduler().empty());
  EXPECT_TRUE(simulation.scheduler().schedule().pieces.empty());
}

TEST(Scheduler, EndsEveryRandomTraceWithinCapacityAndWithoutALeak) {
  int64_t preempted = 0;
  for (uint64_t trial = 0; trial < 600; ++trial) {
    uint64_t counter = 0;
    const auto draw = [&](int64_t bound) {
      return static_cast<int64_t>(
          uniform_below(static_cast<uint64_t>(bound), 5, RngUse::test, trial, counter++));
    };
    const int64_t page_size = 1 + draw(5);
    SchedulerOptions options{.pages = 0,
                             .page_size = page_size,
                             .max_running = 1 + draw(8),
                             .chunked_prefill = 1 + draw(20)};
    const int64_t longest = 40;  // keys
    options.pages = (longest + page_size - 1) / page_size + draw(20);
    Simulation simulation(options, trial % 2 == 0 ? Ends::known : Ends::known_late);
    std::map<int64_t, int64_t> prompts;  // by group
    int64_t left = 25;
    while (left > 0 || !simulation.scheduler().empty()) {
      for (int64_t i = left > 0 ? draw(4) : 0; i > 0 && left > 0; --i, --left) {
        Spec spec{.prompt = 1 + draw(20), .response = 1 + draw(20), .group = draw(6) - 1};
        if (draw(2) == 0) spec.stop = 1 + draw(20);
        if (spec.group != kNoGroup && draw(8) > 0)
          spec.prompt = prompts.try_emplace(spec.group, spec.prompt).first->second;
        simulation.add(spec);
      }
      simulation.step();
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "trial " << trial;
    }
    simulation.run();
    if (HasFatalFailure()) FAIL() << "trial " << trial;
    preempted += simulation.preempted();
  }
  EXPECT_GT(preempted, 100) << "the traces are too easy";
}

}  // namespace
}  // namespace miles
