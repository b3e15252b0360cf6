// cuBLASLt, opened at run time: half a gigabyte that a machine without a GPU need not have.
#pragma once

#include <cublasLt.h>

namespace miles::cuda {

/// The functions that we call. Source: cuBLASLt API, CUDA 12 and 13.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmulAlgoInit) algo_init;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) config_set;
  decltype(&cublasLtGetVersion) version;
  cublasLtHandle_t handle;  // of the current device
};

/// Throws Error{device} naming where it was looked for.
const CublasLt& cublaslt();

/// Throws Error{device} unless `status` is success; `what` says what was tried.
void check(cublasStatus_t status, const char* what);

}  // namespace miles::cuda
