// The kind of processor that a library was compiled for.

#include "processor.h"

// Return 1 if this processor runs the library. The function itself needs no vector instruction.
EXPORT int rknn_supported() {
#if defined(__AVX512F__)
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vnni");
#else
  const bool wide = true;
#endif
  return wide && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}
