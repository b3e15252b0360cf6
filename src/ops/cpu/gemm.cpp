#include "ops/cpu/gemm.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace miles {
namespace {

Bf16Path path_from_environment() {
  const char* value = std::getenv("MILES_CPU_BF16");
  return value == nullptr ? Bf16Path::native : parse_bf16_path(value);
}

std::atomic<Bf16Path>& chosen_path() {
  static std::atomic<Bf16Path> path{path_from_environment()};
  return path;
}

}  // namespace

Bf16Path parse_bf16_path(std::string_view text) {
  if (text == "native") return Bf16Path::native;
  if (text == "converted") return Bf16Path::converted;
  fail(ErrorCode::flags,
       "the environment has MILES_CPU_BF16={}: allowed are native and converted; unset it for "
       "native",
       text);
}

Bf16Path bf16_path() {
  return chosen_path();
}
void set_bf16_path(Bf16Path path) {
  chosen_path() = path;
}

namespace {
std::atomic<bool> amx_emulated = false;
}
void set_emulate_amx(bool emulate) {
  amx_emulated = emulate;
}
bool emulate_amx() {
  return amx_emulated;
}

DotArgs dot_args(const Exec& exec, const LinearArgs& args) {
  return {.x = args.x.data(),
          .w = args.w.data(),
          .y = args.y.data(),
          .x_is_f32 = args.x.dtype() == DType::f32,
          .y_is_f32 = args.y.dtype() == DType::f32,
          .m = args.x.dim(0),
          .n = args.w.dim(0),
          .k = args.x.dim(1),
          .workspace = exec.workspace.data(),
          .workspace_bytes = static_cast<int64_t>(exec.workspace.size())};
}

}  // namespace miles
