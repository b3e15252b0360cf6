#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <functional>
#include <system_error>
#include <thread>

#include "device/cuda/cuda_check.h"

namespace miles::cuda {
namespace {

constexpr int64_t kChunk = int64_t{256} << 20;  // bytes of device memory mapped at a time
constexpr int64_t kTouchPiece = int64_t{64}
                                << 20;  // bytes of host memory touched by a thread at a time

CUdeviceptr address(std::byte* at) {
  return reinterpret_cast<CUdeviceptr>(at);
}

/// Has the system bring every page, on several threads: pinning does it on one, and brings what is
/// left where the system refuses threads.
void touch(std::byte* base, int64_t bytes, int64_t page) {
  const auto pieces = (bytes + kTouchPiece - 1) / kTouchPiece;
  const auto threads = std::min<int64_t>(pieces, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> workers;  // joined at the end
  try {
    for (int64_t worker = 0; worker < threads; ++worker)
      workers.emplace_back([=] {
        for (int64_t piece = worker; piece < pieces; piece += threads) {
          const int64_t end = std::min(bytes, (piece + 1) * kTouchPiece);
          for (int64_t at = piece * kTouchPiece; at < end; at += page) base[at] = std::byte{0};
        }
      });
  } catch (const std::system_error&) {  // those that there are do their part
  }
}

}  // namespace

VirtualMemory::VirtualMemory(int device) {
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  size_t unit = 0;
  check(driver().allocation_granularity(&unit, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "asking for the granularity of device memory");
  granularity_ = static_cast<int64_t>(unit);
}

std::byte* VirtualMemory::reserve(int64_t bytes) {
  CUdeviceptr base = 0;
  check(driver().address_reserve(&base, static_cast<size_t>(bytes), 0, 0, 0),
        "reserving device addresses");
  return reinterpret_cast<std::byte*>(base);
}

void VirtualMemory::unreserve(std::byte* base, int64_t bytes) noexcept {
  driver().address_free(address(base), static_cast<size_t>(bytes));
}

VirtualMemory::Chunk VirtualMemory::take_chunk(int64_t bytes) {
  const auto same = std::find_if(unowned_.begin(), unowned_.end(),
                                 [&](const Chunk& chunk) { return chunk.bytes == bytes; });
  if (same != unowned_.end()) {
    const Chunk chunk = *same;
    unowned_.erase(same);
    return chunk;
  }
  // The smallest that is enough, or else the largest ones.
  std::ranges::sort(unowned_, std::greater{}, &Chunk::bytes);
  const auto larger =
      std::ranges::count_if(unowned_, [&](const Chunk& chunk) { return chunk.bytes > bytes; });
  auto next = unowned_.begin() + std::max<std::ptrdiff_t>(0, larger - 1);
  for (int64_t given = 0; given < bytes && next != unowned_.end(); next = unowned_.erase(next)) {
    given += next->bytes;
    give_back(*next);
  }
  unowned_.reserve(chunks_ + 1);  // or else decommit could fail
  Chunk chunk{.handle = 0, .bytes = bytes};
  check(driver().create(&chunk.handle, static_cast<size_t>(bytes), &properties_, 0),
        "taking device memory");
  ++chunks_;
  held_bytes_ += bytes;
  return chunk;
}

int64_t VirtualMemory::unowned_bytes() const {
  int64_t bytes = 0;
  for (const Chunk& chunk : unowned_) bytes += chunk.bytes;
  return bytes;
}

void VirtualMemory::give_back(const Chunk& chunk) noexcept {
  driver().release(chunk.handle);
  --chunks_;
  held_bytes_ -= chunk.bytes;
}

VirtualMemory::Chunk VirtualMemory::map_chunk(std::byte* at, int64_t bytes) {
  const Chunk chunk = take_chunk(bytes);
  const auto size = static_cast<size_t>(bytes);
  const CUresult mapped = driver().map(address(at), size, 0, chunk.handle, 0);
  if (mapped != CUDA_SUCCESS) give_back(chunk);
  check(mapped, "mapping device memory");
  const CUmemAccessDesc access{properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult accessible = driver().set_access(address(at), size, &access, 1);
  if (accessible != CUDA_SUCCESS) {
    driver().unmap(address(at), size);
    give_back(chunk);
  }
  check(accessible, "opening device memory");
  return chunk;
}

void VirtualMemory::commit(std::byte* base, int64_t bytes) {
  std::vector<Chunk>& chunks = committed_[base];
  MILES_CHECK(chunks.empty(), "device memory is committed twice");
  try {
    for (int64_t done = 0; done < bytes; done += kChunk)
      chunks.push_back(map_chunk(base + done, std::min(kChunk, bytes - done)));
  } catch (...) {
    decommit(base, bytes);
    throw;
  }
}

void VirtualMemory::decommit(std::byte* base, int64_t) noexcept {
  const auto found = committed_.find(base);
  if (found == committed_.end()) return;
  // Kernels and copies that still use it finish first.
  cudaDeviceSynchronize();
  std::byte* at = base;
  for (const Chunk& chunk : found->second) {
    driver().unmap(address(at), static_cast<size_t>(chunk.bytes));
    at += chunk.bytes;
  }
  if (exchanging_) {
    unowned_.insert(unowned_.end(), found->second.begin(), found->second.end());
  } else {
    for (const Chunk& chunk : found->second) give_back(chunk);
  }
  committed_.erase(found);
}

void VirtualMemory::end_exchange() noexcept {
  for (const Chunk& chunk : unowned_) give_back(chunk);
  unowned_.clear();
  exchanging_ = false;
}

void PinnedMemory::commit(std::byte* base, int64_t bytes) {
  AnonymousMemory::commit(base, bytes);
  touch(base, bytes, granularity());
  const cudaError_t pinned = cudaHostRegister(base, static_cast<size_t>(bytes),
                                              cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (pinned == cudaSuccess) return;
  forget_last_error();
  AnonymousMemory::decommit(base, bytes);
  fail(ErrorCode::device,
       "CUDA: cannot pin {} bytes of host memory: {}; lower the memory limit of the job or raise "
       "that of the system (ulimit -l, the container's)",
       bytes, cudaGetErrorString(pinned));
}

void PinnedMemory::decommit(std::byte* base, int64_t bytes) noexcept {
  cudaDeviceSynchronize();
  cudaHostUnregister(base);
  AnonymousMemory::decommit(base, bytes);
}

}  // namespace miles::cuda
