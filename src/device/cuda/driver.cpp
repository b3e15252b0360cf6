#include "device/cuda/driver.h"

#include "device/cuda/cuda_check.h"

namespace miles::cuda {
namespace {

template <class Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess)
    fail(ErrorCode::device,
         "CUDA: the driver has no {}: it is older than CUDA 12.0; update it, or run with --device "
         "cpu",
         name);
  function = reinterpret_cast<Function>(address);
}

Driver load() {
  Driver driver{};
  find(driver.address_reserve, "cuMemAddressReserve");
  find(driver.address_free, "cuMemAddressFree");
  find(driver.create, "cuMemCreate");
  find(driver.release, "cuMemRelease");
  find(driver.map, "cuMemMap");
  find(driver.unmap, "cuMemUnmap");
  find(driver.set_access, "cuMemSetAccess");
  find(driver.allocation_granularity, "cuMemGetAllocationGranularity");
  find(driver.error_string, "cuGetErrorString");
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  fail(ErrorCode::device, "CUDA: {}: {}", what, text != nullptr ? text : "unknown error");
}

}  // namespace miles::cuda
