#include "base/interrupt.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace miles {
namespace {

// Each case has a process of its own: what is blocked and who waits is the process's.
class Interrupt : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  /// Sends this process a signal and waits until it is remembered.
  static void send(int signal) {
    ::kill(::getpid(), signal);
    for (int i = 0; i < 1000 && interrupted() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  [[noreturn]] static void end_well_if(bool right) { std::_Exit(right ? 0 : 1); }
};

TEST_F(Interrupt, TheFirstSignalIsAWishThatIsThrownWhereAskedFor) {
  const auto first = [](int signal) {
    watch_for_interrupts();
    catch_interrupts();
    stop_if_interrupted();
    if (interrupted() != 0) end_well_if(false);
    send(signal);
    try {
      stop_if_interrupted();
    } catch (const Interrupted& interruption) {
      end_well_if(interrupted() == signal && interruption.signal() == signal);
    }
    end_well_if(false);
  };
  EXPECT_EXIT(first(SIGINT), testing::ExitedWithCode(0), "ending at the next safe point");
  EXPECT_EXIT(first(SIGTERM), testing::ExitedWithCode(0), "ending at the next safe point");
}

TEST_F(Interrupt, TheSecondEndsAtOnce) {
  const auto twice = [](int first, int second) {
    watch_for_interrupts();
    catch_interrupts();
    send(first);
    ::kill(::getpid(), second);
    std::this_thread::sleep_for(std::chrono::seconds(20));
    end_well_if(true);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), testing::KilledBySignal(SIGINT), "a second signal");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), testing::KilledBySignal(SIGTERM), "a second signal");
}

TEST_F(Interrupt, BeforeTheyAreCaughtTheFirstEndsAtOnce) {
  const auto early = [] {
    watch_for_interrupts();
    send(SIGTERM);
    end_well_if(true);
  };
  EXPECT_EXIT(early(), testing::KilledBySignal(SIGTERM), "");
}

TEST_F(Interrupt, WhatIsIgnoredStaysIgnored) {
  const auto ignoring = [] {
    signal(SIGINT, SIG_IGN);
    watch_for_interrupts();
    catch_interrupts();
    ::kill(::getpid(), SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (interrupted() != 0) end_well_if(false);
    send(SIGTERM);
    end_well_if(interrupted() == SIGTERM);
  };
  EXPECT_EXIT(ignoring(), testing::ExitedWithCode(0), "");
}

TEST_F(Interrupt, NothingRunsOnTheStackOfAThreadThatComputes) {
  const auto quiet = [] {
    watch_for_interrupts();
    catch_interrupts();
    bool blocked = false;
    std::thread([&] {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
    }).join();
    struct sigaction action = {};
    sigaction(SIGINT, nullptr, &action);
    end_well_if(blocked && action.sa_handler == SIG_DFL);
  };
  EXPECT_EXIT(quiet(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace miles
