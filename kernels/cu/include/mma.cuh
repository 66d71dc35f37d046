// Tensor cores, and the copies that feed them: mma m16n8k16 of bf16 and f16 with f32 sums, ldmatrix, cp.async.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"), g = lane / 4, t = lane % 4:
//   A (16 x 16)  a[0] row g, k 2t, 2t+1; a[1] row g+8; a[2] row g, k 2t+8, 2t+9; a[3] row g+8
//   B (16 x 8)   b0 k 2t, 2t+1, column g; b1 k 2t+8, 2t+9
//   C, D (16 x 8) c[0], c[1] row g, columns 2t, 2t+1; c[2], c[3] row g+8
#pragma once
#include "element.cuh"

// d += a b.
template <class T> __device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <> __device__ inline void mma<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <> __device__ inline void mma<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to the nearest, ties to even: `low` in the lower half.
template <class T> __device__ uint32_t pack(float low, float high);

template <> __device__ inline uint32_t pack<bf16>(float low, float high) {
  uint32_t to;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(to) : "f"(high), "f"(low));
  return to;
}

template <> __device__ inline uint32_t pack<f16>(float low, float high) {
  uint32_t to;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(to) : "f"(high), "f"(low));
  return to;
}

// The address of shared memory within it.
__device__ inline uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Four 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8, and gets of each matrix row
// lane / 4, columns 2 (lane % 4) and the next.
__device__ inline void ldmatrix(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// The same, each matrix transposed.
__device__ inline void ldmatrix_transposed(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// Begins to copy 16 bytes from global memory to shared memory. Where `bytes` is 0 nothing is read, and zeros are written.
__device__ inline void copy_16(uint32_t to, uint64_t from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ inline void copy_16(uint32_t to, const void* from, uint32_t bytes) { copy_16(to, __cvta_generic_to_global(from), bytes); }

// Begins to copy 16 bytes that are there, and asks for the 128 around them to be brought to L2.
__device__ inline void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// Begins to copy 4 bytes to shared memory. Where `bytes` is 0 nothing is read, and zeros are written.
__device__ inline void copy_4(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
}

// The same of 8 bytes.
__device__ inline void copy_8(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],8,%2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
}

// Closes a group of copies.
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the newest `N` groups of this thread's copies are under way. A barrier makes those of others visible.
template <int N> __device__ inline void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
