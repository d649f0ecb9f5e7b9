// What the kernels share: exported functions, and vectors of the processor's width.

#pragma once

#include <stdint.h>
#include <string.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#error "The native kernels are for x86-64 with AVX2 or AVX-512."
#endif

#if defined(__AVX512F__)
#include <immintrin.h>

// Return the bits of a mask.
//
// GCC 12 may write a mask's two bytes to memory and read four. It cannot do so here.
inline unsigned bits_of(__mmask16 mask) {
  unsigned bits = mask;
  __asm__("" : "+r"(bits));
  return bits & 0xFFFF;
}
#endif

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
