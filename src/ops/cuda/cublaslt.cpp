#include "ops/cuda/cublaslt.h"

#include <dlfcn.h>

#include "device/cuda/cuda_check.h"

namespace miles::cuda {
namespace {

void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  for (const std::string& path :
       {name, "/usr/local/cuda/lib64/" + name, "/usr/local/cuda/lib/" + name})
    if (void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  fail(ErrorCode::device,
       "--device cuda needs {}, which is neither where the system looks nor in /usr/local/cuda: "
       "install CUDA {}'s libraries or name their folder in LD_LIBRARY_PATH ({})",
       name, CUBLAS_VER_MAJOR, ::dlerror());
}

CublasLt load() {
  void* const library = open_library();
  CublasLt lt{};
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) fail(ErrorCode::device, "cuBLASLt has no {}", name);
  };
  find(lt.create, "cublasLtCreate");
  find(lt.matmul, "cublasLtMatmul");
  find(lt.desc_create, "cublasLtMatmulDescCreate");
  find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.check, "cublasLtMatmulAlgoCheck");
  find(lt.algo_init, "cublasLtMatmulAlgoInit");
  find(lt.config_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(lt.config_set, "cublasLtMatmulAlgoConfigSetAttribute");
  find(lt.version, "cublasLtGetVersion");
  check(lt.create(&lt.handle), "opening cuBLASLt");
  return lt;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt loaded = load();
  return loaded;
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::device, "cuBLASLt: {}: status {}", what, static_cast<int>(status));
}

}  // namespace miles::cuda
