// The instructions of sm_80 that attention is made of: asynchronous copies into shared memory,
// matrix loads from it, and m16n8k16 products of bf16 into f32. Fragments, lane = 4·g + c (PTX ISA,
// "Matrix fragments for mma.m16n8k16"):
//   A (16×16): a0 = row g, columns 2c, 2c+1; a1 = row g+8; a2, a3 = the same rows, columns + 8
//   B (16×8):  b0 = rows 2c, 2c+1 of column g; b1 = rows + 8
//   C (16×8):  c0, c1 = row g, columns 2c, 2c+1; c2, c3 = row g+8
// So the C of one product, rounded and packed, is the A of the next.
#pragma once

#include <cstdint>

#include "ops/cuda/numeric.cuh"

namespace miles::cuda {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

__device__ inline float infinity() {
  return __int_as_float(0x7F800000);
}

/// 2^x by the special function unit: exactly 1 at 0 and 0 at −∞; NaN stays NaN.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two numbers rounded to bf16; `low` is the one of the lower column.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// A shared-memory address as the instructions below want it.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes into shared memory; zeros, and nothing is read, unless `valid`.
__device__ inline void copy_async_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_8(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(to), "l"(from), "r"(valid ? 8 : 0)
               : "memory");
}
/// Ends a group of copies; an empty group is a group.
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for this thread's groups but the last kPending; a barrier then shows them to the others.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

/// Four 8×8 matrices; lane l brings the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// c += a · b
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Over the four lanes that hold a row of C; every one gets it, in the same bits: the tree is
/// (0 + 1) + (2 + 3), and a sum of two does not depend on which comes first.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace miles::cuda
