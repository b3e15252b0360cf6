#include "device/cuda/cuda_stream.h"

#include <mutex>
#include <vector>

#include "device/cuda/cuda_check.h"

namespace miles::cuda {
namespace {

/// Events that nobody uses now: making one takes longer than recording it.
class EventPool {
 public:
  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // guarded by mutex_; they go with the process
};

EventPool& pool() {
  static auto* const events = new EventPool;  // outlives every static that holds an Event
  return *events;
}

class Recorded : public Event::State {
 public:
  explicit Recorded(cudaStream_t stream) : event_(pool().take()) {
    check(cudaEventRecord(event_, stream), "recording an event");
  }
  ~Recorded() override { pool().give_back(event_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  bool done() const override {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
      forget_last_error();
      return false;
    }
    check(result, "work before an event");
    return true;
  }
  void wait() const override { check(cudaEventSynchronize(event_), "work before an event"); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "instantiating a graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch() override { check(cudaGraphLaunch(executable_, stream_), "launching a graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace

CudaStream::CudaStream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copy");
}

void CudaStream::fill_zero(void* to, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "zero fill");
}

Event CudaStream::record() {
  return Event(std::make_shared<Recorded>(stream_));
}

void CudaStream::wait(const Event& event) {
  if (const auto* recorded = dynamic_cast<const Recorded*>(event.state()))
    check(cudaStreamWaitEvent(stream_, recorded->event(), 0), "waiting for an event");
  else
    event.synchronize();
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(stream_), "work on a stream");
}

std::unique_ptr<Graph> CudaStream::capture(const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a graph");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "capturing a graph");
  return std::make_unique<CudaGraph>(graph, stream_);
}

}  // namespace miles::cuda
