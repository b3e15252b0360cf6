// Hopper's matrix instructions over 128 threads (PTX ISA, "wgmma.mma_async"), as attention uses
// them. They read B, and A unless it is in registers, from tiles in shared memory of rows of 128
// bytes, 64 bf16, whose 16-byte chunk i of row r lies at i ^ (r % 8): the layout of
// attention_tile.cuh for kD = 64. Wider rows are such tiles one after the other. The fragments of A
// and C of a warp are those of m16n8k16, and so are the bits of a chain of products: measured, for
// normal numbers, large ranges, cancellation, subnormals and infinities (bench/wgmma_bits.cu).
#pragma once

#include "ops/cuda/attention_mma.cuh"

namespace miles::cuda {

/// The lower half of a matrix descriptor, its address, to which offsets in units of 16 bytes may be
/// added. `stride`: bytes to the next 64 columns when columns are the operand's other index, that
/// is, when rows are the summed one.
__device__ inline uint32_t matrix(uint32_t tile, uint32_t stride = 16) {
  return tile >> 4 | stride >> 4 << 16;
}
/// The upper half: 1,024 bytes to the next eight rows, and the layout.
inline constexpr uint32_t kMatrixLayout = 1024 >> 4 | 1U << 30;

/// Between writes of registers and the products that use them.
__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends a group of products.
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups of products but the last kPending.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}
/// Keeps the compiler from moving accesses to a result across a begin or a wait.
template <int kN>
__device__ inline void hold(float (&c)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}
/// Has an operand in registers ready here. Such operands are made anew for each product: one that
/// stayed the same around a loop was seen overwritten there (ptxas 13.0), so what stays is read
/// from shared memory.
template <int kN>
__device__ inline void ready(const uint32_t (&a)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" ::"r"(a[n][i]) : "memory");
}

#define MILES_C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define MILES_C32(n)                                                               \
  MILES_C4(n), MILES_C4(n + 1), MILES_C4(n + 2), MILES_C4(n + 3), MILES_C4(n + 4), \
      MILES_C4(n + 5), MILES_C4(n + 6), MILES_C4(n + 7)

/// c = a · b, + c with `add`: 64 rows, four warps of 16, times 8·kN columns, over 16. With kRows
/// the rows of b's tile are the summed index, else they are the columns of c.
template <bool kRows>
__device__ inline void wgmma(float (&c)[8][4], uint32_t a, uint32_t b, bool add) {
  asm volatile(
      "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %35, 0; mov.b64 db, {%33, %34}; mov.b64 da, "
      "{%32, %34}; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "da, db, p, 1, 1, 0, %36;}"
      : MILES_C32(0)
      : "r"(a), "r"(b), "n"(kMatrixLayout), "r"(int{add}), "n"(int{kRows}));
}
template <bool kRows>
__device__ inline void wgmma(float (&c)[8][4], const uint32_t (&a)[4], uint32_t b, bool add) {
  asm volatile(
      "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %38, 0; mov.b64 db, {%36, %37}; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, db, p, 1, 1, %39;}"
      : MILES_C32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kMatrixLayout), "r"(int{add}),
        "n"(int{kRows}));
}
template <bool kRows>
__device__ inline void wgmma(float (&c)[16][4], const uint32_t (&a)[4], uint32_t b, bool add) {
  asm volatile(
      "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %70, 0; mov.b64 db, {%68, %69}; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, db, p, 1, 1, %71;}"
      : MILES_C32(0), MILES_C32(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kMatrixLayout), "r"(int{add}),
        "n"(int{kRows}));
}
/// c += aᵀ · b, 64 rows times 8·kN columns, over 16: rows are the summed index of both tiles.
__device__ inline void wgmma_columns(float (&c)[16][4], uint32_t a, uint32_t b) {
  asm volatile(
      "{.reg .b64 da, db; mov.b64 db, {%65, %66}; mov.b64 da, {%64, %66}; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "da, db, 1, 1, 1, 1, 1;}"
      : MILES_C32(0), MILES_C32(8)
      : "r"(a), "r"(b), "n"(kMatrixLayout));
}

#undef MILES_C32
#undef MILES_C4

}  // namespace miles::cuda
