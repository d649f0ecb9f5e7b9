// Products of points with references, each in three forms.

#pragma once

#include "references.h"
#include "vectors.h"

namespace {

// Sum of each of ROWS points and V vectors of references.
template <class T, int V>
using Sums = typename Of<T>::vector[ROWS][V];

// Return |q|^2/2 - <x, q> in float32.
template <int V, Form FORM>
inline __attribute__((always_inline)) void multiply(const References& r, const Row* rows,
                                                    long first, Sums<float, V>& sum) {
  const float* packed = r.packed + first * r.width * LANES;
  const float* points = rows[0].centred;
  UNROLLED for (int i = 0; i < ROWS; i++) {
    UNROLLED for (int v = 0; v < V; v++) sum[i][v] = floats{};
  }
  for (long j = 0; j < r.width; j++) {
    floats q[V];
    UNROLLED for (int v = 0; v < V; v++) q[v] = load(packed + (v * r.width + j) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) {
      UNROLLED for (int v = 0; v < V; v++) sum[i][v] += q[v] * points[i * r.padded + j];
    }
  }
  UNROLLED for (int v = 0; v < V; v++) {
    const floats half = load(r.half_norms + (first + v) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) sum[i][v] = half - sum[i][v];
  }
}

// Add the products of two words, or of four unsigned and four signed bytes, to each lane.
//
// GCC 12 keeps the sums of its own functions for this in memory.
template <Form FORM>
inline void add_products(ints& sum, ints points, ints references) {
#if defined(__AVX512VNNI__)
  if (FORM == WORDS) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(points), "v"(references));
  } else {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(points), "v"(references));
  }
#else
  static_assert(FORM == WORDS);
  // Unsigned, because sums of points that are solved by differences may overflow.
  sum = (ints)((words)sum + (words)_mm256_madd_epi16((__m256i)points, (__m256i)references));
#endif
}

// Return |q|^2/2 - <x, q> by integers, in units of both scales.
template <int V, Form FORM>
inline __attribute__((always_inline)) void multiply(const References& r, const Row* rows,
                                                    long first, Sums<int32_t, V>& sum) {
  const int32_t* integers = r.integers + first * r.group * LANES;
  const int32_t* points = rows[0].integers;
  UNROLLED for (int i = 0; i < ROWS; i++) {
    const int32_t* start = r.starts + (rows[i].level * r.vectors + first) * LANES;
    UNROLLED for (int v = 0; v < V; v++) sum[i][v] = load(start + v * LANES);
  }
  for (long j = 0; j < r.group; j++) {
    ints q[V];
    UNROLLED for (int v = 0; v < V; v++) q[v] = load(integers + (v * r.group + j) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) {
      const ints x = points[i * r.group + j] - ints{};
      UNROLLED for (int v = 0; v < V; v++) add_products<FORM>(sum[i][v], x, q[v]);
    }
  }
}

// Write the distances of ROWS points and V vectors of references.
template <int V, Form FORM, class T>
ALONE void product(const References& r, const Row* rows, long first, T* out, long stride) {
  Sums<T, V> sum;
  multiply<V, FORM>(r, rows, first, sum);
  UNROLLED for (int i = 0; i < ROWS; i++) {
    UNROLLED for (int v = 0; v < V; v++) store(out + i * stride + v * LANES, sum[i][v]);
  }
}

// The two smallest keys of ROWS points in each lane.
//
// A key is a distance whose lowest bits are replaced by the number of the vector.
template <class T>
struct alignas(64) Least {
  typename Of<T>::vector one[ROWS], two[ROWS];
};

template <int V, Form FORM, class T>
ALONE void product(const References& r, const Row* rows, long first, Least<T>* least, long) {
  typedef typename Of<T>::vector vector;
  Sums<T, V> sum;
  multiply<V, FORM>(r, rows, first, sum);
  UNROLLED for (int i = 0; i < ROWS; i++) {
    vector one = least->one[i], two = least->two[i];
    UNROLLED for (int v = 0; v < V; v++) {
      const vector key = (vector)(((ints)sum[i][v] & ~NUMBER) | int32_t(first + v));
      two = smaller(two, larger(one, key));
      one = smaller(one, key);
    }
    least->one[i] = one;
    least->two[i] = two;
  }
}

inline float* after(float* out, long vectors) { return out + vectors * LANES; }
inline int32_t* after(int32_t* out, long vectors) { return out + vectors * LANES; }
template <class T>
T* after(T* out, long) {
  return out;
}

// Multiply ROWS points with a panel of references.
template <Form FORM, class Out>
void products(const References& r, const Row* rows, long first, long last, Out* out, long stride) {
  for (long v = first; v < last;) {
    Out* to = after(out, v - first);
    const long left = last - v;
    if (left >= 5 || left == 3) {
      product<3, FORM>(r, rows, v, to, stride);
      v += 3;
    } else if (left >= 2) {  // a single vector would leave most of the registers unused
      product<2, FORM>(r, rows, v, to, stride);
      v += 2;
    } else {
      product<1, FORM>(r, rows, v, to, stride);
      v += 1;
    }
  }
}

}  // namespace
