#include "base/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace miles {
namespace {

/// Puts back how signals were handled before.
class Interrupt : public testing::Test {
 protected:
  void TearDown() override {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    catch_interrupts();  // and forgets
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
  }
};

TEST_F(Interrupt, TheFirstSignalIsAWishThatIsThrownWhereAskedFor) {
  for (const int number : {SIGINT, SIGTERM}) {
    catch_interrupts();
    EXPECT_NO_THROW(stop_if_interrupted());
    EXPECT_EQ(interrupted(), 0);
    raise(number);
    EXPECT_EQ(interrupted(), number);
    try {
      stop_if_interrupted();
      ADD_FAILURE();
    } catch (const Interrupted& interruption) {
      EXPECT_EQ(interruption.signal(), number);
    }
  }
}

TEST_F(Interrupt, TheSecondEndsAtOnce) {
  const auto twice = [](int first, int second) {
    catch_interrupts();
    raise(first);
    raise(second);
    std::_Exit(0);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), testing::KilledBySignal(SIGINT), "a second signal");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), testing::KilledBySignal(SIGTERM), "a second signal");
}

TEST_F(Interrupt, WhatIsIgnoredStaysIgnored) {
  signal(SIGINT, SIG_IGN);
  catch_interrupts();
  raise(SIGINT);
  EXPECT_EQ(interrupted(), 0);
  raise(SIGTERM);
  EXPECT_EQ(interrupted(), SIGTERM);
}

}  // namespace
}  // namespace miles
