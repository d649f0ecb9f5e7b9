// Exact nearest references of points: fast products, and a proof for each row.
//
// Half of |x - q|^2 is |q|^2/2 - <x, q> and a constant of the row. The steps of a point are:
//
// 1. A product of all references, in eight bits or in float32, whose error has a bound. References
//    that are farther than the k-th by more than twice the bound are none of the k nearest.
// 2. After eight bits, a float32 product of the others, and the same again.
// 3. The others in the order of their distances. Neighbors in this order whose gap is at most twice
//    the bound are in doubt, and their distances in float64 decide, then the lowest number.
//
// So the answer always is float64's order, ties by the lowest number, as in `assignment.py`.

#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "processor.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define HAS_EIGHT 1
#else
#define HAS_EIGHT 0
#endif

namespace {

constexpr int ROWS = LANES == 16 ? 8 : 4;  // points of a product; its sums fill the registers
constexpr int MOST_VECTORS = 3;            // vectors of references of a product
constexpr int MOST_PANEL = 64;             // vectors of references whose distances exist at a time
constexpr long PANEL_BYTES = 384 << 10;    // of references that stay in a core's cache
constexpr long TILE = 256;                 // points that share a panel, if there are several
constexpr float UNIT = 0x1p-24f;           // largest relative error of a rounding
constexpr float MOST_SQUARE = 1e37f;       // of a distance, above which a sum may overflow

typedef float half_floats __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(4 * LANES)));

long round_up(long size, long unit) { return (size + unit - 1) / unit * unit; }

template <class T>
T* aligned(std::vector<T>& buffer, size_t size) {
  buffer.assign(size + 64 / sizeof(T), T(0));
  return reinterpret_cast<T*>(round_up(reinterpret_cast<intptr_t>(buffer.data()), 64));
}

struct References {
  const float* rows;  // [count, width], the caller's
  long count, width, padded, vectors, panel;
  bool eight;
  std::vector<float> centre_buffer, centred_buffer, packed_buffer, half_buffer, offset_buffer;
  std::vector<int32_t> packed8_buffer;
  float* centre;       // [padded]
  float* centred;      // [count, padded], rows less the centre
  float* packed;       // [vectors, width, LANES], for float32
  int32_t* packed8;    // [vectors, width / 4, LANES] of four eight-bit features each
  float* half_norms;   // [vectors * LANES], |q|^2 / 2, infinite for the padding
  int32_t* offsets;    // [vectors * LANES], the product with 128 in each feature, negative
  float reach;         // the greatest |q|
  float scale;         // of eight-bit references
  float lost;          // the greatest norm of what eight bits lose
};

struct Candidate {
  float distance;  // half a squared distance and a constant of the row
  int32_t number;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.number < b.number);
}

struct State {
  std::vector<Candidate> found;
  float kth;         // at least the k-th smallest distance so far
  float norm, lost;  // |x|, and the norm of what eight bits lose of it
  float scale;       // of eight bits
};

float sum_of(floats v) {
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
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

// Return a bit for each lane that is at most the limit.
unsigned at_most(floats v, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_LE_OQ);
#else
  ints below = v <= limit;
  unsigned bits = 0;
  for (int i = 0; i < LANES; i++) bits |= unsigned(below[i] & 1) << i;
  return bits;
#endif
}

floats load(const float* from) { return *reinterpret_cast<const floats*>(from); }

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

// Products and selection ---------------------------------------------------------------------

// Write |q|^2/2 - <x, q> of ROWS points and V vectors of references.
template <int V>
void product(const References& r, const float* points, long first, float* out, long stride) {
  floats sum[ROWS][V] = {};
  const float* packed = r.packed + first * r.width * LANES;
  for (long j = 0; j < r.width; j++) {
    floats q[V];
    for (int v = 0; v < V; v++) q[v] = load(packed + (v * r.width + j) * LANES);
    for (int i = 0; i < ROWS; i++) {
      for (int v = 0; v < V; v++) sum[i][v] += q[v] * points[i * r.padded + j];
    }
  }
  for (int v = 0; v < V; v++) {
    floats half = load(r.half_norms + (first + v) * LANES);
    for (int i = 0; i < ROWS; i++) {
      *reinterpret_cast<floats*>(out + i * stride + v * LANES) = half - sum[i][v];
    }
  }
}

#if HAS_EIGHT
template <int V>
void product8(const References& r, const int32_t* points, const float* scales, long first,
              float* out, long stride) {
  const long width = r.padded / 4;
  __m512i sum[ROWS][V];
  for (int v = 0; v < V; v++) {
    __m512i offset = _mm512_loadu_si512(r.offsets + (first + v) * LANES);
    for (int i = 0; i < ROWS; i++) sum[i][v] = offset;
  }
  const int32_t* packed = r.packed8 + first * width * LANES;
  for (long j = 0; j < width; j++) {
    __m512i q[V];
    for (int v = 0; v < V; v++) q[v] = _mm512_loadu_si512(packed + (v * width + j) * LANES);
    for (int i = 0; i < ROWS; i++) {
      __m512i x = _mm512_set1_epi32(points[i * width + j]);
      for (int v = 0; v < V; v++) sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], x, q[v]);
    }
  }
  for (int v = 0; v < V; v++) {
    __m512 half = _mm512_loadu_ps(r.half_norms + (first + v) * LANES);
    for (int i = 0; i < ROWS; i++) {
      __m512 scale = _mm512_set1_ps(scales[i]);
      __m512 distance = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(sum[i][v]), half);
      _mm512_storeu_ps(out + i * stride + v * LANES, distance);
    }
  }
}
#endif

// Write the distances of ROWS points to a panel of references, [ROWS, stride].
void distances(const References& r, const float* points, const int32_t* points8,
               const float* scales, long first, long last, float* out, long stride) {
  for (long v = first; v < last; v += MOST_VECTORS, out += MOST_VECTORS * LANES) {
    const int count = std::min<long>(MOST_VECTORS, last - v);
#if HAS_EIGHT
    if (r.eight) {
      if (count == 3) product8<3>(r, points8, scales, v, out, stride);
      if (count == 2) product8<2>(r, points8, scales, v, out, stride);
      if (count == 1) product8<1>(r, points8, scales, v, out, stride);
      continue;
    }
#endif
    if (count == 3) product<3>(r, points, v, out, stride);
    if (count == 2) product<2>(r, points, v, out, stride);
    if (count == 1) product<1>(r, points, v, out, stride);
  }
}

// Return a bound of the k-th smallest of some distances: that of the minima of groups of them.
float bound_of_kth(const float* distance, long vectors, long k) {
  float minima[8 * LANES];
  if (k == 1) {
    floats least = load(distance);
    for (long v = 1; v < vectors; v++) {
      floats other = load(distance + v * LANES);
      least = other < least ? other : least;
    }
    return least_of(least);
  }
  const long groups = std::min<long>({vectors, 8, (4 * k + LANES - 1) / LANES});
  if (k > groups * LANES) return FLT_MAX;
  for (long g = 0; g < groups; g++) {
    floats least = load(distance + g * LANES);
    for (long v = g + groups; v < vectors; v += groups) {
      floats other = load(distance + v * LANES);
      least = other < least ? other : least;
    }
    *reinterpret_cast<floats*>(minima + g * LANES) = least;
  }
  std::nth_element(minima, minima + k - 1, minima + groups * LANES);
  return std::min(minima[k - 1], FLT_MAX);
}

// Drop candidates that cannot be among the k nearest.
void shrink(State& state, long k, float error) {
  auto& found = state.found;
  if (long(found.size()) <= k) return;
  if (k == 1) {
    for (const Candidate& c : found) state.kth = std::min(state.kth, c.distance);
  } else {
    std::nth_element(found.begin(), found.begin() + (k - 1), found.end(), before);
    state.kth = std::min(state.kth, found[k - 1].distance);
  }
  const float limit = state.kth + 2 * error;
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const Candidate& c) { return c.distance > limit; }),
              found.end());
}

// Add the candidates of a panel, which begins with the reference `first`.
void collect(State& state, const float* distance, long vectors, long first, long k, float error) {
  auto& found = state.found;
  if (state.kth == FLT_MAX) state.kth = bound_of_kth(distance, vectors, k);
  size_t most = std::max<size_t>(2 * k + 64, 2 * found.size());
  float limit = std::min(state.kth + 2 * error, FLT_MAX);
  for (long v = 0; v < vectors; v++) {
    unsigned bits = at_most(load(distance + v * LANES), limit);
    if (!bits) continue;
    for (; bits; bits &= bits - 1) {
      const long i = v * LANES + __builtin_ctz(bits);
      found.push_back({distance[i], int32_t(first + i)});
    }
    if (found.size() > most) {
      shrink(state, k, error);
      limit = std::min(state.kth + 2 * error, FLT_MAX);
      most = std::max<size_t>(2 * k + 64, 2 * found.size());
    }
  }
}

// Proofs -------------------------------------------------------------------------------------

// Bound the error of a float32 distance, halved as the distance is. `assignment._error` derives it.
float error_of(const References& r, float norm) {
  const float sum = norm + r.reach;
  if (!(sum * sum < MOST_SQUARE)) return INFINITY;
  const float sums = 8 * sqrtf(float(r.width)) * norm * r.reach;
  return 1.01f * (UNIT * (sums + 4 * sum * sum) + 4 * float(r.width) * 0x1p-126f);
}

// Bound the error of an eight-bit distance, halved.
//
// <x, q> - <x', q'> = <x - x', q'> + <x, q - q'>, by Cauchy and Schwarz at most |x - x'||q'| +
// |x||q - q'|. The sum of integers is exact. Scaling, centring and the norm are rounded.
float error_of8(const References& r, const State& x) {
  const float sum = x.norm + x.lost + r.reach + r.lost;
  if (!(sum * sum < MOST_SQUARE)) return INFINITY;
  const float operands = x.lost * (r.reach + r.lost) + x.norm * r.lost;
  return 1.02f * (operands + 4 * UNIT * sum * sum + 4 * float(r.width) * 0x1p-126f);
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

// Replace the distances of candidates by those of a float32 product, four references at a time.
void refine(const References& r, const float* centred, std::vector<Candidate>& found) {
  const size_t count = found.size();
  for (size_t c = 0; c < count; c += 4) {
    const float* rows[4];
    for (int i = 0; i < 4; i++) {
      rows[i] = r.centred + long(found[std::min(c + i, count - 1)].number) * r.padded;
    }
    floats sum[4] = {};
    for (long j = 0; j < r.padded; j += LANES) {
      const floats x = load(centred + j);
      for (int i = 0; i < 4; i++) sum[i] += x * load(rows[i] + j);
    }
    for (size_t i = 0; i < 4 && c + i < count; i++) {
      found[c + i].distance = r.half_norms[found[c + i].number] - sum_of(sum[i]);
    }
  }
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
void by_gaps(const References& r, const float* x, std::vector<Candidate>& found, long k,
             float error, int32_t* index) {
  const long count = found.size();
  std::sort(found.begin(), found.end(), before);
  std::vector<Exact> doubtful;
  for (long start = 0, stop; start < k; start = stop) {
    stop = start + 1;
    while (stop < count && found[stop].distance - found[stop - 1].distance <= 2 * error) stop++;
    if (stop == start + 1) {
      index[start] = found[start].number;
      continue;
    }
    doubtful.clear();
    for (long i = start; i < stop; i++) {
      const int32_t number = found[i].number;
      doubtful.push_back({exact_distance(x, r.rows + long(number) * r.width, r.width), number});
    }
    std::sort(doubtful.begin(), doubtful.end());
    for (long i = start; i < std::min(stop, k); i++) index[i] = doubtful[i - start].number;
  }
}

void finish(const References& r, const float* x, const float* centred, State& state, long k,
            int32_t* index) {
  float error = r.eight ? error_of8(r, state) : error_of(r, state.norm);
  shrink(state, k, error);
  if (k == 1 && state.found.size() == 1) {
    index[0] = state.found[0].number;
    return;
  }
  if (r.eight) {
    refine(r, centred, state.found);
    error = error_of(r, state.norm);
    state.kth = FLT_MAX;
    shrink(state, k, error);
  }
  by_gaps(r, x, state.found, k, error, index);
}

// Points -------------------------------------------------------------------------------------

// Center a point, and find its norm. Returns the greatest size of a feature.
float center(const References& r, const float* x, float* centred, State& state) {
  floats squares = {}, most = {};
  for (long j = 0; j < r.width; j += LANES) {
    const floats given = j + LANES <= r.width ? load(x + j) : load_some(x + j, r.width - j);
    const floats v = given - load(r.centre + j);
    *reinterpret_cast<floats*>(centred + j) = v;
    squares += v * v;
    const floats size = v < 0 ? -v : v;
    most = size > most ? size : most;
  }
  state.norm = sqrtf(sum_of(squares));
  return -least_of(-most);
}

#if HAS_EIGHT
// Round a centered point to eight bits, of which 128 stands for 0.
void round8(const References& r, const float* centred, float most, int32_t* out, State& state) {
  const bool tiny = !(most > 1e-30f);
  const float scale = tiny ? 0 : most / 127;
  const __m512 inverse = _mm512_set1_ps(tiny ? 0 : 127 / most);
  floats squares = {};
  for (long j = 0; j < r.padded; j += LANES) {
    const __m512 v = _mm512_loadu_ps(centred + j);
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(v, inverse));
    const floats rest = (floats)v - scale * (floats)_mm512_cvtepi32_ps(whole);
    squares += rest * rest;
    const __m128i eight = _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + j / 4), eight);
  }
  state.scale = scale * r.scale;
  state.lost = 1.01f * sqrtf(sum_of(squares)) + 4 * UNIT * state.norm;
}
#endif

void solve(const References& r, const float* points, long n, long k, int32_t* index) {
  const bool single = r.vectors <= r.panel;
  const long tile = single ? ROWS : TILE;
  const long stride = std::min(r.panel, r.vectors) * LANES;
  std::vector<float> centred_buffer, distance_buffer;
  std::vector<int32_t> points8_buffer;
  float* centred = aligned(centred_buffer, tile * r.padded);
  float* distance = aligned(distance_buffer, ROWS * stride);
  int32_t* points8 = aligned(points8_buffer, r.eight ? tile * r.padded / 4 : 0);
  std::vector<State> states(tile);
  std::vector<float> errors(tile), scales(tile);
  for (long start = 0; start < n; start += tile) {
    const long count = std::min(tile, n - start);
    for (long i = 0; i < count; i++) {
      State& state = states[i];
      state.found.clear();
      state.kth = FLT_MAX;
      const float* x = points + (start + i) * r.width;
      const float most = center(r, x, centred + i * r.padded, state);
      errors[i] = error_of(r, state.norm);
#if HAS_EIGHT
      if (r.eight) {
        round8(r, centred + i * r.padded, most, points8 + i * r.padded / 4, state);
        errors[i] = error_of8(r, state);
        scales[i] = state.scale;
      }
#endif
      (void)most;
    }
    for (long first = 0; first < r.vectors; first += r.panel) {
      const long last = std::min(first + r.panel, r.vectors);
      for (long i = 0; i < count; i += ROWS) {
        distances(r, centred + i * r.padded, points8 + i * r.padded / 4, &scales[i], first, last,
                  distance, stride);
        for (long row = i; row < std::min(i + ROWS, count); row++) {
          if (!(errors[row] <= FLT_MAX)) continue;
          collect(states[row], distance + (row - i) * stride, last - first, first * LANES, k,
                  errors[row]);
        }
      }
    }
    for (long i = 0; i < count; i++) {
      const float* x = points + (start + i) * r.width;
      int32_t* out = index + (start + i) * k;
      if (errors[i] <= FLT_MAX) {
        finish(r, x, centred + i * r.padded, states[i], k, out);
      } else {
        by_differences(r, x, k, out);
      }
    }
  }
}

// References ---------------------------------------------------------------------------------

void find_centre(References& r) {
  std::vector<double> sums(r.width);
  for (long i = 0; i < r.count; i++) {
    for (long j = 0; j < r.width; j++) sums[j] += r.rows[i * r.width + j];
  }
  r.centre = aligned(r.centre_buffer, r.padded);
  for (long j = 0; j < r.width; j++) r.centre[j] = float(sums[j] / r.count);
}

void pack(References& r) {
  r.packed = aligned(r.packed_buffer, r.vectors * r.width * LANES);
  for (long i = 0; i < r.count; i++) {
    float* to = r.packed + i / LANES * r.width * LANES + i % LANES;
    for (long j = 0; j < r.width; j++) to[j * LANES] = r.centred[i * r.padded + j];
  }
}

void pack8(References& r, float most) {
  const long width = r.padded / 4;
  r.packed8 = aligned(r.packed8_buffer, r.vectors * width * LANES);
  r.scale = most > 1e-30f ? most / 127 : 0;
  const float inverse = most > 1e-30f ? 127 / most : 0;
  double lost = 0;
  int8_t* packed = reinterpret_cast<int8_t*>(r.packed8);
  for (long i = 0; i < r.count; i++) {
    double squares = 0;
    int32_t sum = 0;
    int8_t* to = packed + (i / LANES * width * LANES + i % LANES) * 4;
    for (long j = 0; j < r.width; j++) {
      const float given = r.centred[i * r.padded + j];
      const int whole = int(rintf(given * inverse));
      const double rest = given - double(r.scale) * whole;
      squares += rest * rest;
      sum += whole;
      to[j / 4 * LANES * 4 + j % 4] = int8_t(whole);
    }
    r.offsets[i] = -128 * sum;
    lost = std::max(lost, squares);
  }
  r.lost = float(1.0001 * sqrt(lost));
}

}  // namespace

// Return whether `rknn_prepare` can take eight bits here.
EXPORT int rknn_has_eight() { return HAS_EIGHT; }

// Prepare references, float32 `[count, width]`, which must live as long as the result.
EXPORT void* rknn_prepare(const float* rows, long count, long width, int eight) {
  auto* r = new References();
  r->rows = rows;
  r->count = count;
  r->width = width;
  r->eight = HAS_EIGHT && eight;
  r->padded = round_up(width, LANES);
  r->vectors = round_up(count, LANES) / LANES;
  const long bytes = LANES * r->padded * (r->eight ? 1 : 4);
  r->panel = std::clamp<long>(PANEL_BYTES / bytes, MOST_VECTORS, MOST_PANEL);
  find_centre(*r);
  r->half_norms = aligned(r->half_buffer, r->vectors * LANES);
  std::fill(r->half_norms + count, r->half_norms + r->vectors * LANES, INFINITY);
  r->offsets = reinterpret_cast<int32_t*>(aligned(r->offset_buffer, r->vectors * LANES));
  r->centred = aligned(r->centred_buffer, count * r->padded);
  float most = 0;
  double reach = 0;
  for (long i = 0; i < count; i++) {
    double squares = 0;
    for (long j = 0; j < width; j++) {
      const float v = rows[i * width + j] - r->centre[j];
      r->centred[i * r->padded + j] = v;
      squares += double(v) * v;
      most = std::max(most, fabsf(v));
    }
    r->half_norms[i] = float(squares / 2);
    reach = squares <= reach ? reach : squares;  // keeps what is not a number
  }
  r->reach = float(sqrt(reach));
  if (!(r->reach <= FLT_MAX)) return r;  // all rows are solved by differences
  if (r->eight) {
    pack8(*r, most);
  } else {
    pack(*r);
    r->centred_buffer = {};
  }
  return r;
}

EXPORT void rknn_release(void* prepared) { delete static_cast<References*>(prepared); }

// Write the numbers of the nearest references, int32 `[n, k]`, of points float32 `[n, width]`.
EXPORT void rknn_nearest(const void* prepared, const float* points, long n, long k,
                         int32_t* index) {
  const References& r = *static_cast<const References*>(prepared);
  if (r.reach <= FLT_MAX) {
    solve(r, points, n, k, index);
  } else {
    for (long i = 0; i < n; i++) by_differences(r, points + i * r.width, k, index + i * k);
  }
}
