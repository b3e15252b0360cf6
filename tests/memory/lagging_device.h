// A device whose streams run their work late, and in the most awkward order that events allow: on
// one thread, so that a wait that was forgotten shows in what is computed, every time.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace miles::test {

/// The work of several streams. Nothing runs until somebody waits for an event.
class Timeline {
 public:
  /// Which stream goes on, of those that can: one of three that is named first, or drawn.
  struct Order {
    std::vector<size_t> first = {};  // streams; empty: drawn
    uint64_t seed = 0;               // of the draws
  };
  explicit Timeline(Order order) : order_(std::move(order)), random_(order_.seed) {}

  class Point : public Event::State {
   public:
    explicit Point(Timeline& timeline) : timeline_(timeline) {}
    bool done() const override { return reached; }
    void wait() const override {
      while (!reached) timeline_.step();
    }
    bool reached = false;

   private:
    Timeline& timeline_;
  };

  struct Work {
    std::function<void()> run;
    Event after;  // may not run before it
  };
  size_t add_stream() {
    queues_.emplace_back();
    return queues_.size() - 1;
  }
  void enqueue(size_t stream, Work work) { queues_[stream].push_back(std::move(work)); }
  bool empty(size_t stream) const { return queues_[stream].empty(); }

  /// One piece of work.
  void step() {
    std::vector<size_t> able;
    for (size_t s = 0; s < queues_.size(); ++s)
      if (!queues_[s].empty() && queues_[s].front().after.done()) able.push_back(s);
    MILES_CHECK(!able.empty(), "everybody waits for somebody");
    size_t next = able[random_() % able.size()];
    for (auto s = order_.first.rbegin(); s != order_.first.rend(); ++s)
      if (std::find(able.begin(), able.end(), *s) != able.end()) next = *s;
    const Work work = std::move(queues_[next].front());
    queues_[next].pop_front();
    work.run();
  }

 private:
  Order order_;
  std::mt19937_64 random_;
  std::vector<std::deque<Work>> queues_;  // by stream
};

class LaggingStream : public Stream {
 public:
  explicit LaggingStream(Timeline& timeline)
      : timeline_(timeline), number_(timeline.add_stream()) {}
  void run(std::function<void()> kernel) { timeline_.enqueue(number_, {std::move(kernel), {}}); }
  void copy(void* to, const void* from, int64_t bytes) override {
    run([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  void fill_zero(void* to, int64_t bytes) override {
    run([=] { std::memset(to, 0, static_cast<size_t>(bytes)); });
  }
  Event record() override {
    auto point = std::make_shared<Timeline::Point>(timeline_);
    run([point] { point->reached = true; });
    return Event(point);
  }
  void wait(const Event& event) override {
    timeline_.enqueue(number_, {[] {}, event});
  }
  void synchronize() override {
    while (!timeline_.empty(number_)) timeline_.step();
  }

 private:
  Timeline& timeline_;
  size_t number_;
};

/// Its streams are numbered as they are made.
class LaggingDevice : public Device {
 public:
  explicit LaggingDevice(Timeline& timeline) : timeline_(timeline) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "lagging"; }
  int64_t capacity_bytes() const override { return cpu_->capacity_bytes(); }
  AddressSpace& memory() override { return cpu_->memory(); }
  AddressSpace& host_memory() override { return cpu_->host_memory(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override {
    return std::make_unique<LaggingStream>(timeline_);
  }

 private:
  Timeline& timeline_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

}  // namespace miles::test
