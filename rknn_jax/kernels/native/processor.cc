// The kind of processor that a library was compiled for.
//
// `__builtin_cpu_supports` needs a runtime that not every compiler links, so this asks the processor.

#include "processor.h"

#include <cpuid.h>

namespace {

// Return the registers (XCR0) that the operating system saves. Needs `bit_OSXSAVE`.
unsigned SavedRegisters() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool HasAll(unsigned found, unsigned wanted) { return (found & wanted) == wanted; }

constexpr unsigned kSavedAvx = 0x6;        // XMM and YMM
constexpr unsigned kSavedAvx512 = 0xe6;    // and the masks and ZMM

}  // namespace

// Return 1 if this processor runs the library. The function itself needs no vector instruction.
EXPORT int rknn_supported() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !HasAll(c, bit_OSXSAVE | bit_FMA | bit_POPCNT)) return 0;
  unsigned saved = kSavedAvx;
  unsigned basic = bit_AVX2 | bit_BMI2;
  unsigned dot_products = 0;
#if defined(__AVX512F__)
  saved = kSavedAvx512;
  basic |= bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  dot_products = bit_AVX512VNNI;
#endif
  return HasAll(SavedRegisters(), saved) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
         HasAll(b, basic) && HasAll(c, dot_products);
}
