#include "device/cpu/cpu_stream.h"

#include <cstring>

namespace miles {
namespace {

/// Set once, by the stream's thread.
class Flag : public Event::State {
 public:
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  void set() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
};

}  // namespace

void InlineStream::copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void InlineStream::fill_zero(void* to, int64_t bytes) {
  std::memset(to, 0, static_cast<size_t>(bytes));
}

ThreadStream::ThreadStream() : thread_([this] { run(); }) {}

ThreadStream::~ThreadStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadStream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void ThreadStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void ThreadStream::copy(void* to, const void* from, int64_t bytes) {
  enqueue([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

void ThreadStream::fill_zero(void* to, int64_t bytes) {
  enqueue([=] { std::memset(to, 0, static_cast<size_t>(bytes)); });
}

Event ThreadStream::record() {
  auto flag = std::make_shared<Flag>();
  enqueue([flag] { flag->set(); });
  return Event(flag);
}

void ThreadStream::wait(const Event& event) {
  if (!event.done()) enqueue([event] { event.synchronize(); });
}

void ThreadStream::synchronize() {
  record().synchronize();
}

}  // namespace miles
