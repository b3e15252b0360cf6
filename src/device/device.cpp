#include "device/device.h"

namespace miles {

std::unique_ptr<Graph> Stream::capture(const std::function<void()>&) {
  return nullptr;
}

}  // namespace miles
