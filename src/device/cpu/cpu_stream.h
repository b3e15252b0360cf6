// The CPU's two kinds of stream. Kernels run on the caller's thread (they spread over all cores by
// themselves); copies run on a thread of their own, in order, so that a forgotten wait is a data
// race that ThreadSanitizer finds.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "device/device.h"

namespace miles {

/// Runs everything at once, on the calling thread; wait() blocks it.
class InlineStream : public Stream {
 public:
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill_zero(void* to, int64_t bytes) override;
  Event record() override { return {}; }
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
};

/// Runs everything in order on its own thread.
class ThreadStream : public Stream {
 public:
  ThreadStream();
  ~ThreadStream() override;  // finishes what was enqueued
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill_zero(void* to, int64_t bytes) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;

 private:
  void enqueue(std::function<void()> work);
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace miles
