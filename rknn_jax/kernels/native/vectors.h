// Vectors of the processor's width: what the kernel of nearest references needs beside arithmetic.

#pragma once

#include <float.h>
#include <immintrin.h>

#include <algorithm>

#include "processor.h"

// Keeps the compiler from mixing a product with what surrounds it, which would cost registers.
#define ALONE __attribute__((noinline))

// Keeps an array that such loops alone use in registers.
#define UNROLLED _Pragma("GCC unroll 16")

namespace {

// Four on every processor, so that all sum in the same order.
typedef double doubles __attribute__((vector_size(32)));

inline doubles load_doubles(const float* from) {
  return (doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
}

// Vector of a type, and the largest distance of a reference that exists.
template <class T>
struct Of;
template <>
struct Of<float> {
  typedef floats vector;
  static constexpr float MOST = 1e38f;
};
template <>
struct Of<int32_t> {
  typedef ints vector;
  static constexpr int32_t MOST = 2000000000;
};

template <class T>
typename Of<T>::vector load(const T* from) {
  return *reinterpret_cast<const typename Of<T>::vector*>(from);
}

template <class T>
void store(T* to, typename Of<T>::vector v) {
  *reinterpret_cast<typename Of<T>::vector*>(to) = v;
}

#if defined(__AVX512F__)

// Load fewer features than lanes; the others are 0.
inline floats load_some(const float* from, long count) {
  return (floats)_mm512_maskz_loadu_ps((1u << count) - 1, from);
}

inline floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
inline ints smaller(ints a, ints b) { return (ints)_mm512_min_epi32((__m512i)a, (__m512i)b); }
inline floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline ints larger(ints a, ints b) { return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }

inline float sum_of(floats v) { return _mm512_reduce_add_ps((__m512)v); }
inline float least_of(floats v) { return _mm512_reduce_min_ps((__m512)v); }
inline int32_t least_of(ints v) { return _mm512_reduce_min_epi32((__m512i)v); }

inline ints rounded(floats v) { return (ints)_mm512_cvtps_epi32((__m512)v); }

// Store the lanes as words, and as bytes.
inline void store_words(int32_t* to, ints v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16((__m512i)v));
}
inline void store_bytes(int32_t* to, ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)v));
}

// Return a bit for each lane that is at most the limit.
inline unsigned at_most(floats v, float limit) {
  return bits_of(_mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_LE_OQ));
}
inline unsigned at_most(ints v, int32_t limit) {
  return bits_of(_mm512_cmple_epi32_mask((__m512i)v, _mm512_set1_epi32(limit)));
}

// Store the lanes of some bits one after another. Up to LANES elements are overwritten.
template <class T>
void squeeze(T* to, typename Of<T>::vector v, unsigned bits) {
  store(to, (typename Of<T>::vector)_mm512_maskz_compress_epi32(bits, (__m512i)v));
}

#else

inline floats load_some(const float* from, long count) {
  const ints there = ints{0, 1, 2, 3, 4, 5, 6, 7} < int32_t(count);
  return (floats)_mm256_maskload_ps(from, (__m256i)there);
}

inline floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
inline ints smaller(ints a, ints b) { return (ints)_mm256_min_epi32((__m256i)a, (__m256i)b); }
inline floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline ints larger(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }

// Combine all lanes: halves, then quarters, then neighbors.
template <class V, class Two>
auto folded(V v, Two two) {
  v = two(v, (V)_mm256_permute2f128_ps((__m256)v, (__m256)v, 1));
  v = two(v, (V)_mm256_permute_ps((__m256)v, 0b01001110));
  return two(v, (V)_mm256_permute_ps((__m256)v, 0b10110001))[0];
}

inline float sum_of(floats v) {
  return folded(v, [](floats a, floats b) { return a + b; });
}

template <class V>
auto least_of(V v) {
  return folded(v, [](V a, V b) { return smaller(a, b); });
}

inline ints rounded(floats v) { return (ints)_mm256_cvtps_epi32((__m256)v); }

// Store the lanes as words.
inline void store_words(int32_t* to, ints v) {
  const __m256i halves = _mm256_packs_epi32((__m256i)v, (__m256i)v);
  const __m256i words = _mm256_permute4x64_epi64(halves, 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(words));
}

// Return a bit for each lane that is at most the limit.
template <class V, class T>
unsigned at_most(V v, T limit) {
  return unsigned(_mm256_movemask_ps((__m256)(v <= limit)));
}

// The lanes of some bits, one after another.
struct Lanes {
  uint8_t of[256][LANES];
  constexpr Lanes() : of() {
    for (int bits = 0; bits < 256; bits++) {
      int count = 0;
      for (int lane = 0; lane < LANES; lane++) {
        if (bits >> lane & 1) of[bits][count++] = uint8_t(lane);
      }
    }
  }
};
constexpr Lanes SET;

// Store the lanes of some bits one after another. Up to LANES elements are overwritten.
template <class T>
void squeeze(T* to, typename Of<T>::vector v, unsigned bits) {
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(SET.of[bits]));
  const __m256i order = _mm256_cvtepu8_epi32(lanes);
  store(to, (typename Of<T>::vector)_mm256_permutevar8x32_epi32((__m256i)v, order));
}

#endif

inline ints lanes_from(int32_t first) {
#if LANES == 16
  return ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
#else
  return ints{0, 1, 2, 3, 4, 5, 6, 7} + first;
#endif
}

}  // namespace
