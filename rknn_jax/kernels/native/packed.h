// Words of packed bits, a vector at a time, of which there may be fewer than lanes.

#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "processor.h"

#if defined(__AVX512F__)
inline __mmask16 lowest(long count) { return _cvtu32_mask16((1u << count) - 1); }
#endif

inline words load(const uint32_t* from) { return *reinterpret_cast<const words*>(from); }

inline words load_some(const uint32_t* from, long count) {
  if (count >= LANES) return load(from);
#if defined(__AVX512F__)
  return (words)_mm512_maskz_loadu_epi32(lowest(count), from);
#else
  words read = {};
  for (int i = 0; i < LANES; i++) read[i] = i < count ? from[i] : 0;
  return read;
#endif
}

inline void store_some(uint32_t* to, long count, words value) {
  if (count >= LANES) {
    *reinterpret_cast<words*>(to) = value;
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_epi32(to, lowest(count), (__m512i)value);
#else
  for (int i = 0; i < count; i++) to[i] = value[i];
#endif
}
