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

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
