// A device: memory that can be given back without moving, and streams that run work in order.
// This folder is the only place that knows a vendor's API; cpu/ is complete and is what tests run
// on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace miles {

enum class DeviceKind { cpu, cuda };

/// Raw memory by address range: an address is reserved once and stays valid as long as the range,
/// while the bytes behind it come (commit) and go (decommit). Only memory/ calls it, after the
/// ledger has agreed; a handoff spans an exchange. Offsets and sizes passed to commit and decommit
/// are multiples of granularity().
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;
  virtual int64_t granularity() const = 0;  // bytes
  /// Throws Error{device} when the address space is exhausted.
  virtual std::byte* reserve(int64_t bytes) = 0;
  virtual void unreserve(std::byte* base, int64_t bytes) noexcept = 0;
  /// After it the bytes may be used; what they hold is undefined. Throws Error{device}.
  virtual void commit(std::byte* base, int64_t bytes) = 0;
  /// Gives the physical memory back to the system, but in an exchange; the content is lost, the
  /// address stays.
  virtual void decommit(std::byte* base, int64_t bytes) noexcept = 0;
  /// Between the two calls memory that decommit takes is kept for later commits, because the system
  /// may clear what it is given back with the very engines that copies need. What does not fit a
  /// commit makes room for it, and what is left at the end goes to the system. The process never
  /// holds more than the most that was committed at once. Exchanges do not nest; memory is committed
  /// and decommitted by one thread meanwhile.
  virtual void begin_exchange() {}
  virtual void end_exchange() noexcept {}
};

/// A point in a stream's work. Copies name the same point. A default-constructed Event is in the
/// past.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    virtual void wait() const = 0;  // blocks the calling thread
  };
  Event() = default;
  explicit Event(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  bool done() const { return !state_ || state_->done(); }
  void synchronize() const {
    if (state_) state_->wait();
  }
  const State* state() const { return state_.get(); }  // for the backends

 private:
  std::shared_ptr<const State> state_;  // null: in the past
};

/// Work that was enqueued once and can be enqueued again, as a whole, at the price of one launch.
class Graph {
 public:
  virtual ~Graph() = default;
  /// On the stream that it was captured on.
  virtual void launch() = 0;
};

/// Work in order. What is enqueued may run later, on another thread or processor; memory it names
/// must stay valid until an event recorded after it is done.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Copies between any two places, device or host. The ranges do not overlap.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill_zero(void* to, int64_t bytes) = 0;
  /// The point after all that has been enqueued so far.
  virtual Event record() = 0;
  /// Work enqueued from now on starts after `event`.
  virtual void wait(const Event& event) = 0;
  /// Blocks the calling thread until all enqueued work is done.
  virtual void synchronize() = 0;
  /// Whether capture() can.
  virtual bool captures() const { return false; }
  /// What `work` enqueues on this stream, of which nothing runs now. Addresses and sizes are then
  /// fixed; what lies at the addresses may change. `work` does not synchronise, and copies to or
  /// from pinned or device memory only. Null where captures() is false; `work` was not called then.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& work);
};

/// What a stream is for: kernels on one, copies on their own so that both directions overlap with
/// them.
enum class StreamUse { compute, copy_to_device, copy_to_host };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;        // "AMD EPYC, 2 threads"
  virtual bool runs() const { return true; }   // what is enqueued; a dry device does not
  virtual int64_t capacity_bytes() const = 0;  // what it has in all
  /// What is in use now and did not come through memory(): the driver's context, libraries, graphs,
  /// other processes. 0 where nobody tells.
  virtual int64_t foreign_bytes() const { return 0; }
  /// What an exchange keeps for later commits now.
  virtual int64_t exchange_bytes() const { return 0; }
  virtual AddressSpace& memory() = 0;       // the device's own
  virtual AddressSpace& host_memory() = 0;  // the host's, reachable by the device's copies
  virtual std::unique_ptr<Stream> make_stream(StreamUse use) = 0;
};

/// What the host has in all, bytes.
int64_t host_capacity_bytes();

/// The CPU as a device: its memory is an anonymous mapping of the host's.
std::unique_ptr<Device> make_cpu_device();

/// How many CUDA devices can be used; 0 without driver, and in a build without CUDA.
int cuda_device_count();
/// Throws Error{device} when there is no such device.
std::unique_ptr<Device> make_cuda_device(int index = 0);

/// A device that holds nothing and runs nothing: addresses are numbers, copies are no-ops, sizes
/// are rounded as `like` rounds them. Running an allocation sequence on it tells what the sequence
/// would take (colocate/plan.h).
std::unique_ptr<Device> make_dry_device(Device& like);

}  // namespace miles
