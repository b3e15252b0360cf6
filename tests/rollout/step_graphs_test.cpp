#include "rollout/step_graphs.h"

#include <gtest/gtest.h>

#include <set>

namespace miles {
namespace {

TEST(LadderShape, HoldsWhatIsWantedInFewShapes) {
  const DecodeShape limits{200, 100};
  std::set<DecodeShape> shapes;
  for (int64_t sequences = 1; sequences <= limits.sequences; ++sequences)
    for (int64_t pages = 1; pages <= limits.pages; ++pages) {
      const DecodeShape shape = ladder_shape({sequences, pages}, limits);
      ASSERT_GE(shape.sequences, sequences);
      ASSERT_GE(shape.pages, pages);
      ASSERT_LE(shape.sequences, limits.sequences);
      ASSERT_LE(shape.pages, limits.pages);
      ASSERT_LE(shape.sequences, sequences + sequences / 4 + 1) << "a quarter is wasted at most";
      shapes.insert(shape);
    }
  EXPECT_LE(shapes.size(), 8U * 28U);
  EXPECT_TRUE(ladder_shape({5, 5, true}, limits).shares);
}

/// Counts what is enqueued and what is launched.
class CountingStream : public Stream {
 public:
  struct Launch : Graph {
    explicit Launch(int& count) : count_(count) {}
    void launch() override { ++count_; }
    int& count_;
  };
  void copy(void*, const void*, int64_t) override {}
  void fill_zero(void*, int64_t) override {}
  Event record() override { return {}; }
  void wait(const Event&) override {}
  void synchronize() override {}
  bool captures() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    work();
    return std::make_unique<Launch>(launches);
  }
  int launches = 0;
};

TEST(StepGraphs, CaptureWhatComesTwice) {
  CountingStream stream;
  StepGraphs graphs;
  int calls = 0;
  const auto work = [&] { ++calls; };
  graphs.run(stream, {4, 8}, work);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stream.launches, 0);
  for (int i = 1; i <= 3; ++i) {
    graphs.run(stream, {4, 8}, work);
    EXPECT_EQ(calls, 2) << "captured once";
    EXPECT_EQ(stream.launches, i);
  }
  graphs.run(stream, {8, 8}, work);
  EXPECT_EQ(calls, 3) << "another shape";
  graphs.run(stream, {8, 8, true}, work);
  EXPECT_EQ(calls, 4) << "other kernels";
}

TEST(StepGraphs, OneTooManyTakesThePlaceOfTheOneLongestUnused) {
  CountingStream stream;
  StepGraphs graphs;
  int calls = 0;
  const auto run = [&](int64_t sequences) {
    calls = 0;
    graphs.run(stream, {sequences, 8}, [&] { ++calls; });
    return calls;
  };
  const auto most = static_cast<int64_t>(StepGraphs::kMostShapes);
  for (int64_t sequences = 1; sequences <= most; ++sequences)
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run(sequences), 1) << "enqueued, then captured";
  EXPECT_EQ(run(1), 0);  // is now the one last used
  EXPECT_EQ(run(most + 1), 1);
  for (int64_t sequences = 3; sequences <= most; ++sequences) EXPECT_EQ(run(sequences), 0);
  EXPECT_EQ(run(1), 0);
  EXPECT_EQ(run(2), 1) << "it had to go";
}

}  // namespace
}  // namespace miles
