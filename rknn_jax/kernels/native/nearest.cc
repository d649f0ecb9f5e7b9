// Exact nearest references of points: fast products, and a proof for each row.
//
// Half of |x - q|^2 is |q|^2/2 - <x, q> and a constant of the row. The steps of a point are:
//
// 1. A product with all references, in one of three forms, whose error has a bound. References that
//    are farther than the k-th by more than twice the bound are none of the k nearest.
// 2. After the coarsest form, a float32 product with the others, and the same again.
// 3. The others in the order of their distances. Neighbors in this order whose gap is at most twice
//    the bound are in doubt. Their distances in float64 decide, then the lowest number.
//
// So the answer always is float64's order, ties by the lowest number, as in `assignment.py`.
//
// The forms are float32; one digit, which rounds features to eight bits and needs a quarter of the
// time; and two digits of eight bits, which need three quarters.

#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "processor.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Keeps the compiler from mixing a product with what surrounds it, which would cost registers.
#define ALONE __attribute__((noinline))

// Keeps an array that such loops alone use in registers.
#define UNROLLED _Pragma("GCC unroll 16")

namespace {

enum Form { FLOATS = 0, ONE_DIGIT = 1, TWO_DIGITS = 2 };

constexpr int ROWS = LANES == 16 ? 8 : 4;  // points of a product; its sums fill the registers
constexpr int MOST_VECTORS = 3;            // vectors of references of a product
constexpr int MOST_PANEL = 64;             // vectors of references whose distances exist at a time
constexpr long PANEL_BYTES = 384 << 10;    // of references that stay in a core's cache
constexpr long TILE = 256;                 // points that share a panel, if there are several
constexpr long FEW = 3 * LANES;            // most candidates that are sorted by their ranks
constexpr long MOST_DIGITS = 12288;        // features whose products of digits fit an int32
constexpr int LEVELS = 13;                 // scales that a point may have, and the middle one, which
constexpr int MIDDLE = 6;                  // is that of the references; two of them are an octave
constexpr float LOW = 254;                 // second digits of one first digit
constexpr float UNIT = 0x1p-24f;           // largest relative error of a rounding
constexpr float MOST_SQUARE = 1e37f;       // of a distance, above which a sum may overflow

typedef float half_floats __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(4 * LANES)));

// Vector of the processor's width, and the largest distance of a reference that exists.
template <class T>
struct Of;
template <>
struct Of<float> {
  typedef floats vector;
  static constexpr float MOST = FLT_MAX;
};
template <>
struct Of<int32_t> {
  typedef ints vector;
  static constexpr int32_t MOST = 1000000000;
};

constexpr int32_t NO_REFERENCE = Of<int32_t>::MOST + 1;

long round_up(long size, long unit) { return (size + unit - 1) / unit * unit; }

template <class T>
T* aligned(std::vector<T>& buffer, size_t size) {
  buffer.assign(size + 64 / sizeof(T), T(0));
  return reinterpret_cast<T*>(round_up(reinterpret_cast<intptr_t>(buffer.data()), 64));
}

struct References {
  const float* rows;  // [count, width], the caller's
  long count, width, vectors, panel;
  long padded;  // width up to whole vectors
  long digit;   // integers that hold a digit of all features
  Form form;
  std::vector<float> centre_buffer, centred_buffer, packed_buffer, half_buffer;
  std::vector<int32_t> digits_buffer[2], offset_buffer[2], start_buffer;
  float* centre;        // [padded]
  float* centred;       // [count, padded], rows less the centre
  float* packed;        // [vectors, width, LANES]
  int32_t* digits[2];   // [vectors, digit, LANES], digits of -q, four features each
  int32_t* offsets[2];  // [vectors * LANES], what the products with 128 are too low
  int32_t* starts;      // [LEVELS, vectors * LANES], |q|^2 / 2 in units of both scales, and offsets
  float* half_norms;    // [vectors * LANES], |q|^2 / 2, infinite for the padding
  float reach;          // the greatest |q|
  float scale;          // of a first digit
  float scales[LEVELS]; // that points may have, ascending
  float lost[2];        // the greatest norms of what one and two digits lose
};

// Point of a product.
struct Row {
  const float* given;
  float* centred;      // [padded]
  int32_t* digits[2];  // [padded / 4], digits and 128, four features each
  float norm, most;    // |x|, and the greatest size of a feature
  float scale;         // of both sides' first digits together
  int level;           // of the own scale
  float lost[2];       // norms of what one and two digits lose
  float error;         // bound of half a squared distance's error; not finite if there is none
};

// Candidates of a point, and a bound for the k-th smallest distance.
template <class T>
struct Found {
  std::vector<T> distance;
  std::vector<int32_t> number;
  long count;
  T kth;

  void clear() {
    count = 0;
    kth = Of<T>::MOST;
    reserve(FEW);
  }
  void reserve(long size) {
    if (long(distance.size()) >= size + LANES) return;
    distance.resize(2 * size + LANES);
    number.resize(2 * size + LANES);
  }
};

// Vectors ------------------------------------------------------------------------------------

template <class T>
typename Of<T>::vector load(const T* from) {
  return *reinterpret_cast<const typename Of<T>::vector*>(from);
}

template <class T>
void store(T* to, typename Of<T>::vector v) {
  *reinterpret_cast<typename Of<T>::vector*>(to) = v;
}

// Load fewer features than lanes; the others are 0.
floats load_some(const float* from, long count) {
#if defined(__AVX512F__)
  return (floats)_mm512_maskz_loadu_ps((1u << count) - 1, from);
#else
  floats v = {};
  memcpy(&v, from, 4 * count);
  return v;
#endif
}

#if defined(__AVX512F__)
floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
ints smaller(ints a, ints b) { return (ints)_mm512_min_epi32((__m512i)a, (__m512i)b); }
#else
template <class V>
V smaller(V a, V b) {
  return a < b ? a : b;
}
#endif

float sum_of(floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
#endif
}

float least_of(floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_ps((__m512)v);
#else
  float least = v[0];
  for (int i = 1; i < LANES; i++) least = std::min(least, v[i]);
  return least;
#endif
}

int32_t least_of(ints v) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_epi32((__m512i)v);
#else
  int32_t least = v[0];
  for (int i = 1; i < LANES; i++) least = std::min(least, v[i]);
  return least;
#endif
}

// Return a bit for each lane that is at most the limit.
#if defined(__AVX512F__)
// Not a plain conversion of the mask, for which GCC 12 may read more bits than it has written.
unsigned at_most(floats v, float limit) {
  return _cvtmask16_u32(_mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_LE_OQ));
}
unsigned at_most(ints v, int32_t limit) {
  return _cvtmask16_u32(_mm512_cmple_epi32_mask((__m512i)v, _mm512_set1_epi32(limit)));
}
#else
template <class V, class T>
unsigned at_most(V v, T limit) {
  const ints below = v <= limit;
  unsigned bits = 0;
  for (int i = 0; i < LANES; i++) bits |= unsigned(below[i] & 1) << i;
  return bits;
}
#endif

// Store the lanes of some bits one after another. Up to LANES elements are overwritten.
template <class T>
void squeeze(T* to, typename Of<T>::vector v, unsigned bits) {
#if defined(__AVX512F__)
  store(to, (typename Of<T>::vector)_mm512_maskz_compress_epi32(bits, (__m512i)v));
#else
  for (; bits; bits &= bits - 1) *to++ = v[__builtin_ctz(bits)];
#endif
}

ints lanes_from(int32_t first) {
#if LANES == 16
  return ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
#elif LANES == 8
  return ints{0, 1, 2, 3, 4, 5, 6, 7} + first;
#else
  return ints{0, 1, 2, 3} + first;
#endif
}

// Selection ----------------------------------------------------------------------------------

// Write how many of some distances come before each; of equal ones, the earlier do.
template <class T>
void rank(const T* distance, long count, int32_t* ranks) {
  typedef typename Of<T>::vector vector;
  for (long first = 0; first < count; first += LANES) {
    const vector own = load(distance + first);
    const ints lane = lanes_from(first);
    ints before = {};
    for (long j = 0; j < count; j++) {
      const vector other = distance[j] - vector{};
      before -= (ints)(other < own) | ((ints)(other == own) & (lane > int32_t(j)));
    }
    store(ranks + first, before);
  }
}

// Return a bound of the k-th smallest of some distances: that of the minima of groups of them.
template <class T>
T bound_of_kth(const T* distance, long vectors, long k) {
  typedef typename Of<T>::vector vector;
  if (k == 1) {
    vector least[4];
    UNROLLED for (int u = 0; u < 4; u++) least[u] = load(distance);
    long v = 0;
    for (; v + 4 <= vectors; v += 4) {
      UNROLLED for (int u = 0; u < 4; u++) {
        least[u] = smaller(load(distance + (v + u) * LANES), least[u]);
      }
    }
    for (; v < vectors; v++) least[0] = smaller(load(distance + v * LANES), least[0]);
    return least_of(smaller(smaller(least[0], least[1]), smaller(least[2], least[3])));
  }
  const long groups = std::min<long>(vectors, (3 * k / 2 + LANES - 1) / LANES);
  // Groups of one distance each would be sorted twice.
  if (groups == vectors || groups * LANES > FEW) return Of<T>::MOST;
  T minima[FEW];
  for (long g = 0; g < groups; g++) {
    vector least = load(distance + g * LANES);
    for (long v = g + groups; v < vectors; v += groups) {
      least = smaller(load(distance + v * LANES), least);
    }
    store(minima + g * LANES, least);
  }
  int32_t ranks[FEW];
  rank(minima, groups * LANES, ranks);
  long i = 0;
  while (ranks[i] != k - 1) i++;
  return std::min(minima[i], Of<T>::MOST);
}

// Return the largest distance of a candidate, given one of the k-th.
template <class T>
T limit_of(T kth, T slack) {
  return kth < Of<T>::MOST - slack ? kth + slack : Of<T>::MOST;
}

// Drop candidates that are too far from the k-th to be among the k nearest.
template <class T>
void shrink(Found<T>& found, long k, T slack) {
  if (found.count <= k) return;
  if (k == 1) {
    found.kth = *std::min_element(&found.distance[0], &found.distance[found.count]);
  } else {
    std::vector<T> sorted(&found.distance[0], &found.distance[found.count]);
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end());
    found.kth = sorted[k - 1];
  }
  const T limit = limit_of(found.kth, slack);
  long kept = 0;
  for (long i = 0; i < found.count; i++) {
    found.distance[kept] = found.distance[i];
    found.number[kept] = found.number[i];
    kept += found.distance[i] <= limit;
  }
  found.count = kept;
}

template <class T>
typename Of<T>::vector least_of_four(const T* d) {
  return smaller(smaller(load(d), load(d + LANES)),
                 smaller(load(d + 2 * LANES), load(d + 3 * LANES)));
}

// Add the candidates of a panel, which begins with the reference `first`.
template <class T>
void collect(Found<T>& found, const T* distance, long vectors, long first, long k, T slack) {
  found.kth = std::min(found.kth, bound_of_kth(distance, vectors, k));
  T limit = limit_of(found.kth, slack);
  long most = std::max(2 * k + FEW, 2 * found.count);
  for (long v = 0; v < vectors; v++) {
    // Most distances are too far, and four vectors of them pass at a time.
    while (v + 4 <= vectors && !at_most(least_of_four(distance + v * LANES), limit)) v += 4;
    if (v == vectors) break;
    const auto own = load(distance + v * LANES);
    const unsigned bits = at_most(own, limit);
    if (!bits) continue;
    found.reserve(found.count);
    squeeze(&found.distance[found.count], own, bits);
    squeeze(&found.number[found.count], lanes_from(first + v * LANES), bits);
    found.count += __builtin_popcount(bits);
    if (found.count > most) {
      shrink(found, k, slack);
      limit = limit_of(found.kth, slack);
      most = std::max(2 * k + FEW, 2 * found.count);
    }
  }
}

// Put candidates into the order of their distances.
void sort(Found<float>& found) {
  const long count = found.count;
  std::vector<std::pair<float, int32_t>> pairs;
  if (count > FEW) {
    for (long i = 0; i < count; i++) pairs.push_back({found.distance[i], found.number[i]});
    std::sort(pairs.begin(), pairs.end());
    for (long i = 0; i < count; i++) {
      found.distance[i] = pairs[i].first;
      found.number[i] = pairs[i].second;
    }
    return;
  }
  int32_t ranks[FEW], number[FEW];
  float distance[FEW];
  for (long i = count; i % LANES; i++) found.distance[i] = INFINITY;
  rank(&found.distance[0], count, ranks);
  for (long i = 0; i < count; i++) {
    distance[ranks[i]] = found.distance[i];
    number[ranks[i]] = found.number[i];
  }
  std::copy(distance, distance + count, found.distance.begin());
  std::copy(number, number + count, found.number.begin());
}

// Products -----------------------------------------------------------------------------------

// Write |q|^2/2 - <x, q> of ROWS points and V vectors of references.
template <int V>
ALONE void product(const References& r, const Row* rows, long first, float* out, long stride) {
  floats sum[ROWS][V] = {};
  const float* packed = r.packed + first * r.width * LANES;
  const float* points = rows[0].centred;
  for (long j = 0; j < r.width; j++) {
    floats q[V];
    UNROLLED for (int v = 0; v < V; v++) q[v] = load(packed + (v * r.width + j) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) {
      UNROLLED for (int v = 0; v < V; v++) sum[i][v] += q[v] * points[i * r.padded + j];
    }
  }
  UNROLLED for (int v = 0; v < V; v++) {
    const floats half = load(r.half_norms + (first + v) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) store(out + i * stride + v * LANES, half - sum[i][v]);
  }
}

#if defined(__AVX512VNNI__)
// Add the products of four unsigned and four signed features to each lane.
//
// GCC 12 keeps the sums of its own function for this in memory.
inline void add_products(ints& sum, ints points, ints references) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(points), "v"(references));
}

// Write the same of one digit, in units of both scales.
template <int V>
ALONE void product(const References& r, const Row* rows, long first, int32_t* out, long stride) {
  const long width = r.digit;
  const int32_t* packed = r.digits[0] + first * width * LANES;
  const int32_t* points = rows[0].digits[0];
  ints sum[ROWS][V];
  UNROLLED for (int i = 0; i < ROWS; i++) {
    const int32_t* start = r.starts + (rows[i].level * r.vectors + first) * LANES;
    UNROLLED for (int v = 0; v < V; v++) sum[i][v] = load(start + v * LANES);
  }
  for (long j = 0; j < width; j++) {
    ints q[V];
    UNROLLED for (int v = 0; v < V; v++) q[v] = load(packed + (v * width + j) * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) {
      const ints x = points[i * width + j] - ints{};
      UNROLLED for (int v = 0; v < V; v++) add_products(sum[i][v], x, q[v]);
    }
  }
  UNROLLED for (int i = 0; i < ROWS; i++) {
    UNROLLED for (int v = 0; v < V; v++) store(out + i * stride + v * LANES, sum[i][v]);
  }
}

// Write |q|^2/2 - <x, q> by two digits, without the product of the second ones.
ALONE void distances2(const References& r, const Row* rows, long first, long last, float* out,
                      long stride) {
  const long width = r.digit;
  const int32_t* high = rows[0].digits[0];
  const int32_t* low = rows[0].digits[1];
  for (long v = first; v < last; v++) {
    const int32_t* packed = r.digits[0] + v * width * LANES;
    const int32_t* packed_low = r.digits[1] + v * width * LANES;
    ints sum[ROWS], rest[ROWS];
    UNROLLED for (int i = 0; i < ROWS; i++) {
      sum[i] = load(r.offsets[0] + v * LANES);
      rest[i] = load(r.offsets[1] + v * LANES);
    }
    for (long j = 0; j < width; j++) {
      const ints q = load(packed + j * LANES);
      const ints q_low = load(packed_low + j * LANES);
      UNROLLED for (int i = 0; i < ROWS; i++) {
        const ints x = high[i * width + j] - ints{};
        add_products(sum[i], x, q);
        add_products(rest[i], x, q_low);
        add_products(rest[i], low[i * width + j] - ints{}, q);
      }
    }
    const floats half = load(r.half_norms + v * LANES);
    UNROLLED for (int i = 0; i < ROWS; i++) {
      const floats whole = __builtin_convertvector(sum[i], floats);
      const floats part = __builtin_convertvector(rest[i], floats);
      const floats product = rows[i].scale * (whole + part * (1 / LOW));
      store(out + i * stride + (v - first) * LANES, half + product);
    }
  }
}
#endif

// Write the distances of ROWS points to a panel of references.
template <class T>
void distances(const References& r, const Row* rows, long first, long last, T* out, long stride) {
  for (long v = first; v < last;) {
    T* to = out + (v - first) * LANES;
    const long left = last - v;
    if (left >= 5 || left == 3) {
      product<3>(r, rows, v, to, stride);
      v += 3;
    } else if (left >= 2) {  // a single vector would leave most of the registers unused
      product<2>(r, rows, v, to, stride);
      v += 2;
    } else {
      product<1>(r, rows, v, to, stride);
      v += 1;
    }
  }
}

// Proofs -------------------------------------------------------------------------------------

// Bound the error of a float32 distance, halved as the distance is.
//
// In any order, a sum of w products errs by at most w roundings of the sum of their sizes, which is
// |x||q| at most by Cauchy and Schwarz. Nothing is assumed of the roundings: features that are all
// equal are rounded alike. Centering, |q|^2/2 and the last sum are rounded too, by less than 4
// roundings of (|x| + |q|)^2 together. Products that underflow are lost. One percent covers the
// rounding of the bound itself.
float error_of(const References& r, float norm) {
  const float sum = norm + r.reach;
  const float sums = float(r.width) * norm * r.reach;
  return 1.01f * (UNIT * (sums + 4 * sum * sum) + 4 * float(r.width) * 0x1p-126f);
}

// Bound the error of a distance by digits, halved.
//
// <x, q> - <x', q'> = <x - x', q'> + <x, q - q'>, by Cauchy and Schwarz at most |x - x'||q'| +
// |x||q - q'|. The product of second digits that is left out is at most that of the norms of what
// first digits lose, and of what second ones lose. The sums of integers are exact. Scaling,
// centering and norms are rounded, of one digit to a whole number of both scales.
float error_of_digits(const References& r, const Row& x) {
  const int last = r.form == ONE_DIGIT ? 0 : 1;
  const float lost = x.lost[last];
  float operands = lost * (r.reach + r.lost[last]) + x.norm * r.lost[last];
  if (last) operands += (x.lost[0] + x.lost[1]) * (r.lost[0] + r.lost[1]);
  const float sum = x.norm + lost + r.reach + r.lost[last];
  const float rounding = 6 * UNIT * sum * sum + (last ? 0 : x.scale);
  return 1.02f * (operands + rounding + 4 * float(r.width) * 0x1p-126f);
}

float bound_of_error(const References& r, const Row& x) {
  const float sum = x.norm + r.reach;
  if (!(sum * sum < MOST_SQUARE)) return INFINITY;
  return r.form == FLOATS ? error_of(r, x.norm) : error_of_digits(r, x);
}

double exact_distance(const float* x, const float* q, long width) {
  constexpr int HALF = LANES / 2;
  doubles sum = {};
  long j = 0;
  for (; j + HALF <= width; j += HALF) {
    doubles a = __builtin_convertvector(*reinterpret_cast<const half_floats*>(x + j), doubles);
    doubles b = __builtin_convertvector(*reinterpret_cast<const half_floats*>(q + j), doubles);
    sum += (a - b) * (a - b);
  }
  double rest = 0;
  for (; j < width; j++) rest += (double(x[j]) - q[j]) * (double(x[j]) - q[j]);
  for (int i = 0; i < HALF; i++) rest += sum[i];
  return rest;
}

struct Exact {
  double distance;
  int32_t number;
  bool operator<(const Exact& other) const {
    return distance < other.distance || (distance == other.distance && number < other.number);
  }
};

// Write the k nearest by float64 distances to all references; -1 if one overflows float32.
void by_differences(const References& r, const float* x, long k, int32_t* index) {
  std::vector<Exact> all(r.count);
  for (long i = 0; i < r.count; i++) {
    all[i] = {exact_distance(x, r.rows + i * r.width, r.width), int32_t(i)};
    if (!(all[i].distance <= FLT_MAX)) {
      std::fill(index, index + k, -1);
      return;
    }
  }
  std::partial_sort(all.begin(), all.begin() + k, all.end());
  for (long i = 0; i < k; i++) index[i] = all[i].number;
}

// Write the k nearest of the candidates, all of whose distances err by at most `error`.
void by_gaps(const References& r, const Row& x, Found<float>& found, long k, float error,
             int32_t* index) {
  if (found.count == 1) {
    index[0] = found.number[0];
    return;
  }
  sort(found);
  const float* distance = &found.distance[0];
  const int32_t* number = &found.number[0];
  for (long start = 0, stop; start < k; start = stop) {
    stop = start + 1;
    while (stop < found.count && distance[stop] - distance[stop - 1] <= 2 * error) stop++;
    if (stop == start + 1) {
      index[start] = number[start];
      continue;
    }
    std::vector<Exact> doubtful;
    for (long i = start; i < stop; i++) {
      const float* q = r.rows + long(number[i]) * r.width;
      doubtful.push_back({exact_distance(x.given, q, r.width), number[i]});
    }
    std::sort(doubtful.begin(), doubtful.end());
    for (long i = start; i < std::min(stop, k); i++) index[i] = doubtful[i - start].number;
  }
}

// Return how much farther than the k-th a candidate may seem, in the unit of the distances.
template <class T>
T slack_of(const Row& x) {
  if (sizeof(T) == sizeof(int32_t) && T(0.5f) == 0) {
    return T(std::min(2 * x.error / x.scale, float(Of<int32_t>::MOST))) + 2;
  }
  return T(2 * x.error);
}

void finish(const References& r, const Row& x, Found<float>& found, long k, int32_t* index) {
  if (found.count > FEW) shrink(found, k, 2 * x.error);
  by_gaps(r, x, found, k, x.error, index);
}

// Multiply the candidates of one digit again in float32, four references at a time.
void finish(const References& r, const Row& x, Found<int32_t>& found, long k, int32_t* index) {
  shrink(found, k, slack_of<int32_t>(x));
  if (found.count == 1) {
    index[0] = found.number[0];
    return;
  }
  Found<float> again;
  again.clear();
  again.reserve(found.count);
  again.count = found.count;
  for (long c = 0; c < found.count; c += 4) {
    const float* rows[4];
    for (int i = 0; i < 4; i++) {
      rows[i] = r.centred + long(found.number[std::min(c + i, found.count - 1)]) * r.padded;
    }
    floats sum[4] = {};
    for (long j = 0; j < r.padded; j += LANES) {
      const floats v = load(x.centred + j);
      for (int i = 0; i < 4; i++) sum[i] += v * load(rows[i] + j);
    }
    for (long i = 0; i < 4 && c + i < found.count; i++) {
      const int32_t number = found.number[c + i];
      again.number[c + i] = number;
      again.distance[c + i] = r.half_norms[number] - sum_of(sum[i]);
    }
  }
  const float error = error_of(r, x.norm);
  if (again.count > FEW) shrink(again, k, 2 * error);
  by_gaps(r, x, again, k, error, index);
}

// Points -------------------------------------------------------------------------------------

// Center a point, and ask for a later one's memory.
void center(const References& r, Row& x, const float* later) {
  floats squares = {}, most = {};
  for (long j = 0; j < r.width; j += LANES) {
    const floats given =
        j + LANES <= r.width ? load(x.given + j) : load_some(x.given + j, r.width - j);
    __builtin_prefetch(later + j);
    const floats v = given - load(r.centre + j);
    store(x.centred + j, v);
    squares += v * v;
    most = smaller(most, smaller(v, -v));
  }
  x.norm = sqrtf(sum_of(squares));
  x.most = -least_of(most);
}

#if defined(__AVX512VNNI__)
void store_digits(int32_t* to, ints digits) {
  const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)(digits + 128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

// Return the digits of features in units of a scale, which are at most 127 in size.
ints digits_of(floats features, float inverse) {
  const __m512i whole = _mm512_cvtps_epi32((__m512)(features * inverse));
  const __m512i least = _mm512_max_epi32(whole, _mm512_set1_epi32(-127));
  return (ints)_mm512_min_epi32(least, _mm512_set1_epi32(127));
}

// Round a centered point to digits.
//
// The scale depends on the point and the references alone, as all that is found for a point does.
template <bool TWO>
void round_digits(const References& r, Row& x) {
  x.level = 0;
  for (int level = 0; level < LEVELS - 1; level++) x.level += 127 * r.scales[level] < x.most;
  const float own = r.scales[x.level];
  x.scale = own * r.scale;
  floats squares = {}, squares2 = {};
  for (long j = 0; j < r.padded; j += LANES) {
    const floats v = load(x.centred + j);
    const ints digit = digits_of(v, 1 / own);
    const floats rest = v - own * __builtin_convertvector(digit, floats);
    squares += rest * rest;
    store_digits(x.digits[0] + j / 4, digit);
    if (TWO) {
      const ints low = digits_of(rest, LOW / own);
      const floats rest2 = rest - own / LOW * __builtin_convertvector(low, floats);
      squares2 += rest2 * rest2;
      store_digits(x.digits[1] + j / 4, low);
    }
  }
  x.lost[0] = 1.01f * sqrtf(sum_of(squares)) + 4 * UNIT * x.norm;
  if (TWO) x.lost[1] = 1.01f * sqrtf(sum_of(squares2)) + 4 * UNIT * x.norm;
}
#endif

// Solves points of a form; T is the type of its distances.
template <class T, Form FORM>
struct Solver {
  const References& r;
  const long tile, stride;
  std::vector<float> centred_buffer;
  std::vector<int32_t> digits_buffer[2];
  std::vector<T> distance_buffer;
  std::vector<Row> rows;
  std::vector<Found<T>> found;
  T* distance;

  Solver(const References& r)
      : r(r),
        tile(r.vectors <= r.panel ? ROWS : TILE),
        stride(std::min(r.panel, r.vectors) * LANES),
        rows(tile),
        found(tile) {
    float* centred = aligned(centred_buffer, tile * r.padded);
    int32_t* digits[2];
    for (int i = 0; i < 2; i++) digits[i] = aligned(digits_buffer[i], tile * r.digit + LANES);
    distance = aligned(distance_buffer, ROWS * stride);
    for (long i = 0; i < tile; i++) {
      rows[i].centred = centred + i * r.padded;
      for (int d = 0; d < 2; d++) rows[i].digits[d] = digits[d] + i * r.digit;
    }
  }

  // Center and round a point, and ask for the memory of one that comes `ahead`.
  void prepare(const float* point, long ahead, Row& row) {
    row.given = point;
    center(r, row, point + ahead * r.width);
#if defined(__AVX512VNNI__)
    if (FORM != FLOATS) round_digits<FORM == TWO_DIGITS>(r, row);
#endif
    row.error = bound_of_error(r, row);
  }

  void multiply(const Row* row, long first, long last) {
#if defined(__AVX512VNNI__)
    if constexpr (FORM == TWO_DIGITS) {
      distances2(r, row, first, last, distance, stride);
      return;
    }
#endif
    distances(r, row, first, last, distance, stride);
  }

  void solve(const float* points, long n, long k, int32_t* index) {
    for (long start = 0; start < n; start += tile) {
      const long count = std::min(tile, n - start);
      for (long i = 0; i < count; i++) {
        const long ahead = std::min<long>(ROWS, n - 1 - start - i);
        prepare(points + (start + i) * r.width, ahead, rows[i]);
        found[i].clear();
      }
      for (long first = 0; first < r.vectors; first += r.panel) {
        pass(count, first, std::min(first + r.panel, r.vectors), k);
      }
      for (long i = 0; i < count; i++) {
        int32_t* out = index + (start + i) * k;
        if (rows[i].error <= FLT_MAX) {
          finish(r, rows[i], found[i], k, out);
        } else {
          by_differences(r, rows[i].given, k, out);
        }
      }
    }
  }

  // Collect the candidates of a panel.
  void pass(long count, long first, long last, long k) {
    for (long i = 0; i < count; i += ROWS) {
      multiply(&rows[i], first, last);
      for (long row = i; row < std::min(i + ROWS, count); row++) {
        if (!(rows[row].error <= FLT_MAX)) continue;
        collect(found[row], distance + (row - i) * stride, last - first, first * LANES, k,
                slack_of<T>(rows[row]));
      }
    }
  }
};

// References ---------------------------------------------------------------------------------

// Center the references. Returns the greatest size of a feature.
float center_all(References& r) {
  std::vector<double> sums(r.width);
  for (long i = 0; i < r.count; i++) {
    for (long j = 0; j < r.width; j++) sums[j] += r.rows[i * r.width + j];
  }
  r.centre = aligned(r.centre_buffer, r.padded);
  for (long j = 0; j < r.width; j++) r.centre[j] = float(sums[j] / r.count);
  r.half_norms = aligned(r.half_buffer, r.vectors * LANES);
  std::fill(r.half_norms + r.count, r.half_norms + r.vectors * LANES, INFINITY);
  r.centred = aligned(r.centred_buffer, r.count * r.padded);
  float most = 0;
  double reach = 0;
  for (long i = 0; i < r.count; i++) {
    double squares = 0;
    for (long j = 0; j < r.width; j++) {
      const float v = r.rows[i * r.width + j] - r.centre[j];
      r.centred[i * r.padded + j] = v;
      squares += double(v) * v;
      most = std::max(most, fabsf(v));
    }
    r.half_norms[i] = float(squares / 2);
    reach = squares <= reach ? reach : squares;  // keeps what is not a number
  }
  r.reach = float(sqrt(reach));
  return most;
}

void pack(References& r) {
  r.packed = aligned(r.packed_buffer, r.vectors * r.width * LANES);
  for (long i = 0; i < r.count; i++) {
    float* to = r.packed + i / LANES * r.width * LANES + i % LANES;
    for (long j = 0; j < r.width; j++) to[j * LANES] = r.centred[i * r.padded + j];
  }
  r.centred_buffer = {};
}

void pack_digits(References& r, float most) {
  const long width = r.digit;
  r.scale = std::max(most / 127, 1e-30f);
  int8_t* packed[2];
  for (int d = 0; d < 2; d++) {
    r.digits[d] = aligned(r.digits_buffer[d], r.vectors * width * LANES);
    r.offsets[d] = aligned(r.offset_buffer[d], r.vectors * LANES);
    packed[d] = reinterpret_cast<int8_t*>(r.digits[d]);
  }
  double lost[2] = {};
  for (long i = 0; i < r.count; i++) {
    const long to = (i / LANES * width * LANES + i % LANES) * 4;
    double squares[2] = {};
    for (long j = 0; j < r.width; j++) {
      double rest = r.centred[i * r.padded + j];
      double unit = r.scale;
      for (int d = 0; d < 2; d++) {
        const int digit = int(rint(rest / unit));
        rest -= unit * digit;
        unit /= LOW;
        squares[d] += rest * rest;
        packed[d][to + j / 4 * LANES * 4 + j % 4] = int8_t(-digit);
        r.offsets[d][i] += 128 * digit;
      }
    }
    for (int d = 0; d < 2; d++) lost[d] = std::max(lost[d], squares[d]);
    r.offsets[1][i] += r.offsets[0][i];  // 128 stands in both digits of a point
  }
  for (int d = 0; d < 2; d++) r.lost[d] = float(1.0001 * sqrt(lost[d]));
  r.starts = aligned(r.start_buffer, LEVELS * r.vectors * LANES);
  for (int level = 0; level < LEVELS; level++) {
    r.scales[level] = r.scale * exp2f((level - MIDDLE) / 2.0f);
    const double unit = double(r.scale) * r.scales[level];
    int32_t* starts = r.starts + level * r.vectors * LANES;
    for (long i = 0; i < r.vectors * LANES; i++) {
      const double half = std::min(r.half_norms[i] / unit, double(NO_REFERENCE));
      starts[i] = int32_t(rint(half)) + r.offsets[0][i];
    }
  }
}

template <class T, Form FORM>
void solve(const References& r, const float* points, long n, long k, int32_t* index) {
  Solver<T, FORM>(r).solve(points, n, k, index);
}

}  // namespace

// Prepare references, float32 `[count, width]`, which must live as long as the result.
EXPORT void* rknn_prepare(const float* rows, long count, long width, int form) {
  auto* r = new References();
  r->rows = rows;
  r->count = count;
  r->width = width;
  r->form = FLOATS;
#if defined(__AVX512VNNI__)
  if (width <= MOST_DIGITS) r->form = Form(form);
#endif
  r->padded = round_up(width, LANES);
  r->digit = round_up(width, 4) / 4;
  r->vectors = round_up(count, LANES) / LANES;
  const long bytes = LANES * r->padded * (r->form == FLOATS ? 4 : int(r->form));
  r->panel = std::clamp<long>(PANEL_BYTES / bytes, MOST_VECTORS, MOST_PANEL);
  const float most = center_all(*r);
  if (!(r->reach <= FLT_MAX)) return r;  // all rows are solved by differences
  if (r->form == FLOATS) {
    pack(*r);
  } else {
    pack_digits(*r, most);
  }
  return r;
}

EXPORT void rknn_release(void* prepared) { delete static_cast<References*>(prepared); }

// Write the numbers of the nearest references, int32 `[n, k]`, of points float32 `[n, width]`.
EXPORT void rknn_nearest(const void* prepared, const float* points, long n, long k,
                         int32_t* index) {
  const References& r = *static_cast<const References*>(prepared);
  if (!(r.reach <= FLT_MAX)) {
    for (long i = 0; i < n; i++) by_differences(r, points + i * r.width, k, index + i * k);
  } else if (r.form == FLOATS) {
    solve<float, FLOATS>(r, points, n, k, index);
#if defined(__AVX512VNNI__)
  } else if (r.form == TWO_DIGITS) {
    solve<float, TWO_DIGITS>(r, points, n, k, index);
  } else {
    solve<int32_t, ONE_DIGIT>(r, points, n, k, index);
#endif
  }
}
