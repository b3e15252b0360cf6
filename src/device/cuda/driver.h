// The driver's functions that the run time has no equal of, found at run time: the program is never
// linked with libcuda, so that it starts where there is no driver.
#pragma once

#include <cuda.h>

namespace miles::cuda {

/// Source: CUDA driver API, "Virtual Memory Management".
struct Driver {
  decltype(&cuMemAddressReserve) address_reserve;
  decltype(&cuMemAddressFree) address_free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) allocation_granularity;
  decltype(&cuGetErrorString) error_string;
};

/// Throws Error{device} when the driver lacks one. Needs a device.
const Driver& driver();

}  // namespace miles::cuda
