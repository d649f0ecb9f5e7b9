// Exact nearest references of points: fast products, and a proof for each row.
//
// Half of |x - q|^2 is |q|^2/2 - <x, q> and a constant of the row. The steps of a point are:
//
// 1. A product with all references, in one of three forms, whose error has a bound. References that
//    are farther than the k-th by more than twice the bound are none of the k nearest.
// 2. After a product of integers, a float32 product with the others, and the same again.
// 3. The others in the order of their distances. Neighbors in this order whose gap is at most twice
//    the bound are in doubt. Their distances in float64 decide, then the lowest number.
//
// So the answer always is float64's order, ties by the lowest number, as in `assignment.py`. It
// depends on the point and the references alone.
//
// The forms are float32; words, which round features to about eleven bits and need half of the time;
// and bytes, which need a quarter of it and leave more candidates.

#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "selection.h"
#include "vectors.h"

namespace {

enum Form { FLOATS = 0, WORDS = 1, BYTES = 2 };

constexpr int ROWS = LANES == 16 ? 8 : 4;  // points of a product; its sums fill the registers
constexpr int MOST_VECTORS = 3;            // vectors of references of a product
constexpr int MOST_PANEL = 64;             // vectors of references whose distances exist at a time
constexpr long PANEL_BYTES = 384 << 10;    // of references that stay in a core's cache
constexpr long TILE = 256;                 // points that share a panel, if there are several
constexpr long MOST_WIDTH = 8192;          // features whose integer products fit an int32
constexpr int LEVELS = 13;                 // scales that a point may have, and the middle one, which
constexpr int MIDDLE = 6;                  // is that of the references; two of them are an octave
constexpr int NUMBER = 255;                // bits of a key that number its vector of references
constexpr long MOST_ZEROS = 1024;          // features whose squares are summed at a time
constexpr float UNIT = 0x1p-24f;           // largest relative error of a rounding
constexpr float MOST_SQUARE = 1e37f;       // of a distance, above which a sum may overflow
constexpr int32_t NO_REFERENCE = Of<int32_t>::MOST + 2 * (NUMBER + 1);  // its key, too, is above MOST

long round_up(long size, long unit) { return (size + unit - 1) / unit * unit; }

template <class T>
T* aligned(std::vector<T>& buffer, size_t size) {
  buffer.assign(size + 64 / sizeof(T), T(0));
  return reinterpret_cast<T*>(round_up(reinterpret_cast<intptr_t>(buffer.data()), 64));
}

struct References {
  const float* rows;  // [count, width], the caller's
  double most_distance;  // squared, that a point with neighbors may have to any reference
  long count, width, neighbors, vectors, panel;
  long padded;  // width up to whole vectors
  long group;   // pairs of words or quadruples of bytes that hold all features
  Form form;
  float* centre;         // [padded]
  float* centred;        // [count, padded], rows less the centre
  float* packed;         // [vectors, width, LANES], of floats
  int32_t* integers;     // [vectors, group, LANES], -q in units of its scale
  int32_t* starts;       // [LEVELS, vectors * LANES], what products of integers begin with
  float* half_norms;     // [vectors * LANES], |q|^2 / 2, infinite for the padding
  float reach;           // the greatest |q|
  float lost;            // the greatest norm of what integers lose
  float scale;           // of the integers
  float scales[LEVELS];  // that points may have, ascending
  int most;              // the greatest size of an integer
  std::vector<float> centre_buffer, centred_buffer, packed_buffer, half_buffer;
  std::vector<int32_t> integer_buffer, start_buffer;
};

// Point of a product.
struct Row {
  const float* given;
  float* centred;     // [padded]
  int32_t* integers;  // [group], two words or four bytes each; bytes have 128 more
  float norm, most;   // |x|, and the greatest size of a feature
  int level;          // of the own scale
  float scale;        // of both sides' integers together
  float lost;         // the norm of what integers lose
  float error;        // bound of half a squared distance's error; not finite if there is none
};

// Products -----------------------------------------------------------------------------------

// Write |q|^2/2 - <x, q> of ROWS points and V vectors of references.
template <int V, Form FORM>
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
    UNROLLED for (int i = 0; i < ROWS; i++) {
      store(out + i * stride + v * LANES, half - sum[i][v]);
    }
  }
}

#if defined(__AVX512VNNI__)

// Add the products of two words, or of four unsigned and four signed bytes, to each lane.
//
// GCC 12 keeps the sums of its own functions for this in memory.
template <Form FORM>
inline void add_products(ints& sum, ints points, ints references) {
  if (FORM == WORDS) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(points), "v"(references));
  } else {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(points), "v"(references));
  }
}

// Return |q|^2/2 - <x, q> by integers, in units of both scales.
template <int V, Form FORM>
inline __attribute__((always_inline)) void multiply(const References& r, const Row* rows,
                                                    long first, ints (&sum)[ROWS][V]) {
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

template <int V, Form FORM>
ALONE void product(const References& r, const Row* rows, long first, int32_t* out, long stride) {
  ints sum[ROWS][V];
  multiply<V, FORM>(r, rows, first, sum);
  UNROLLED for (int i = 0; i < ROWS; i++) {
    UNROLLED for (int v = 0; v < V; v++) store(out + i * stride + v * LANES, sum[i][v]);
  }
}

// The two smallest keys of ROWS points in each lane.
//
// A key is a distance by words whose lowest bits are replaced by the number of the vector.
struct alignas(64) Least {
  ints one[ROWS], two[ROWS];
};

template <int V, Form FORM>
ALONE void product(const References& r, const Row* rows, long first, Least* least, long) {
  ints sum[ROWS][V];
  multiply<V, FORM>(r, rows, first, sum);
  UNROLLED for (int i = 0; i < ROWS; i++) {
    ints one = least->one[i], two = least->two[i];
    UNROLLED for (int v = 0; v < V; v++) {
      const ints key = (sum[i][v] & ~NUMBER) | int32_t(first + v);
      two = smaller(two, larger(one, key));
      one = smaller(one, key);
    }
    least->one[i] = one;
    least->two[i] = two;
  }
}

#endif

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

// Proofs -------------------------------------------------------------------------------------

// Bound the error of a float32 distance, halved as the distance is.
//
// A sum errs by at most as many roundings as each product passes, here `depth`, of the sum of sizes,
// which is |x||q| at most by Cauchy and Schwarz. Nothing is assumed of the roundings: features that
// are all equal are rounded alike. Centering, |q|^2/2 and the last sum are rounded too, by less than
// 4 roundings of (|x| + |q|)^2 together. Products that underflow are lost. One percent covers the
// rounding of the bound itself.
float error_of_floats(const References& r, float norm, long depth) {
  const float sum = norm + r.reach;
  const float sums = float(depth) * norm * r.reach;
  return 1.01f * (UNIT * (sums + 4 * sum * sum) + 4 * float(r.width) * 0x1p-126f);
}

// Bound the error of a distance by integers, halved.
//
// <x, q> - <x', q'> = <x - x', q'> + <x, q - q'>, by Cauchy and Schwarz at most |x - x'||q'| +
// |x||q - q'|. Sums of integers are exact. Centering and norms are rounded, and |q|^2/2 to a whole
// number of both scales.
float error_of_integers(const References& r, const Row& x) {
  const float operands = x.lost * (r.reach + r.lost) + x.norm * r.lost;
  const float sum = x.norm + x.lost + r.reach + r.lost;
  const float roundings = 4 * UNIT * sum * sum + x.scale;
  return 1.02f * (operands + roundings + 4 * float(r.width) * 0x1p-126f);
}

float bound_of_error(const References& r, const Row& x) {
  const float sum = x.norm + r.reach;
  if (!(sum * sum < MOST_SQUARE)) return INFINITY;
  return r.form == FLOATS ? error_of_floats(r, x.norm, r.width) : error_of_integers(r, x);
}

// Return how much farther than the k-th a candidate may seem, in the unit of the distances.
float slack_of(const Row& x, float) { return 2 * x.error; }
int32_t slack_of(const Row& x, int32_t) {
  return int32_t(std::min(2 * x.error / x.scale, float(Of<int32_t>::MOST))) + 2;
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

// Write the k nearest by float64 distances to all references; -1 if one is too large.
void by_differences(const References& r, const float* x, int32_t* index) {
  std::vector<Exact> all(r.count);
  for (long i = 0; i < r.count; i++) {
    all[i] = {exact_distance(x, r.rows + i * r.width, r.width), int32_t(i)};
    if (!(all[i].distance <= r.most_distance)) {
      std::fill(index, index + r.neighbors, -1);
      return;
    }
  }
  std::partial_sort(all.begin(), all.begin() + r.neighbors, all.end());
  for (long i = 0; i < r.neighbors; i++) index[i] = all[i].number;
}

// Write the k nearest of the candidates, all of whose distances err by at most `error`.
void by_gaps(const References& r, const Row& x, Found<float>& found, float error, int32_t* index) {
  const long k = r.neighbors;
  if (found.count > most_kept(k)) shrink(found, k, 2 * error);
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

// Multiply candidates again in float32, four references at a time, and solve the point.
void refine(const References& r, const Row& x, const int32_t* number, long count, int32_t* index) {
  Found<float> again;
  again.clear(r.neighbors);
  again.reserve(count);
  again.count = count;
  for (long c = 0; c < count; c += 4) {
    const float* rows[4];
    UNROLLED for (int i = 0; i < 4; i++) {
      rows[i] = r.centred + long(number[std::min(c + i, count - 1)]) * r.padded;
    }
    floats sum[4] = {};
    for (long j = 0; j < r.padded; j += LANES) {
      const floats v = load(x.centred + j);
      UNROLLED for (int i = 0; i < 4; i++) sum[i] += v * load(rows[i] + j);
    }
    for (long i = 0; i < 4 && c + i < count; i++) {
      again.number[c + i] = number[c + i];
      again.distance[c + i] = r.half_norms[number[c + i]] - sum_of(sum[i]);
    }
  }
  // Each lane sums its own features, and at last the lanes are summed.
  by_gaps(r, x, again, error_of_floats(r, x.norm, r.padded / LANES + LANES), index);
}

void finish(const References& r, const Row& x, Found<float>& found, int32_t* index) {
  by_gaps(r, x, found, x.error, index);
}

void finish(const References& r, const Row& x, Found<int32_t>& found, int32_t* index) {
  shrink(found, r.neighbors, slack_of(x, int32_t()));
  if (found.count == 1) {
    index[0] = found.number[0];
  } else {
    refine(r, x, &found.number[0], found.count, index);
  }
}

// Write the nearest reference, given the two smallest keys of each lane.
void finish(const References& r, const Row& x, ints one, ints two, int32_t* index) {
  const int32_t slack = std::min(slack_of(x, int32_t()), Of<int32_t>::MOST - NUMBER) + NUMBER;
  const int32_t limit = limit_of(least_of(one) | NUMBER, slack);
  const unsigned lanes = at_most(one, limit);
  const unsigned crowded = at_most(two, limit);
  if (!crowded && !(lanes & (lanes - 1))) {
    const int lane = __builtin_ctz(lanes);
    index[0] = (one[lane] & NUMBER) * LANES + lane;
    return;
  }
  std::vector<int32_t> numbers;
  for (int lane = 0; lane < LANES; lane++) {
    if (crowded >> lane & 1) {  // a third one may be near, too
      for (int32_t i = lane; i < r.count; i += LANES) numbers.push_back(i);
    } else if (lanes >> lane & 1) {
      numbers.push_back((one[lane] & NUMBER) * LANES + lane);
    }
  }
  refine(r, x, numbers.data(), numbers.size(), index);
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

// Round a centered point to integers.
//
// The scale depends on the point and the references alone, as all that is found for a point does.
template <Form FORM>
void round_point(const References& r, Row& x) {
  const float most = x.most / float(r.most);
  int level = 0;
  UNROLLED for (int i = 0; i < LEVELS - 1; i++) level += r.scales[i] < most;
  const float own = r.scales[level];
  x.level = level;
  x.scale = own * r.scale;
  floats squares = {};
  for (long j = 0; j < r.padded; j += LANES) {
    const floats v = load(x.centred + j);
    const ints whole = (ints)_mm512_cvtps_epi32((__m512)(v * (1 / own)));
    const ints integer = smaller(larger(whole, ints{} - r.most), ints{} + r.most);
    const floats rest = v - own * __builtin_convertvector(integer, floats);
    squares += rest * rest;
    if (FORM == WORDS) {
      const __m256i words = _mm512_cvtepi32_epi16((__m512i)integer);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(x.integers + j / 2), words);
    } else {
      const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)(integer + 128));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(x.integers + j / 4), bytes);
    }
  }
  x.lost = 1.01f * sqrtf(sum_of(squares)) + 4 * UNIT * x.norm;
}

#endif

// Solves points of a form; T is the type of its distances.
template <class T, Form FORM>
struct Solver {
  const References& r;
  const long tile, stride;
  std::vector<float> centred_buffer;
  std::vector<int32_t> integer_buffer;
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
    int32_t* integers = aligned(integer_buffer, tile * r.group + LANES);
    distance = aligned(distance_buffer, ROWS * stride);
    for (long i = 0; i < tile; i++) {
      rows[i].centred = centred + i * r.padded;
      rows[i].integers = integers + i * r.group;
    }
  }

  // Center, round and bound the points of some rows.
  void prepare(const float* points, long start, long count, long n) {
    for (long i = 0; i < count; i++) {
      Row& row = rows[i];
      row.given = points + (start + i) * r.width;
      const long ahead = std::min<long>(ROWS, n - 1 - start - i);
      center(r, row, row.given + ahead * r.width);
#if defined(__AVX512VNNI__)
      if constexpr (FORM != FLOATS) round_point<FORM>(r, row);
#endif
      row.error = bound_of_error(r, row);
    }
  }

  void solve(const float* points, long n, int32_t* index) {
    for (long start = 0; start < n; start += tile) {
      const long count = std::min(tile, n - start);
      prepare(points, start, count, n);
      for (long i = 0; i < count; i++) found[i].clear(r.neighbors);
      for (long first = 0; first < r.vectors; first += r.panel) {
        pass(count, first, std::min(first + r.panel, r.vectors));
      }
      for (long i = 0; i < count; i++) {
        int32_t* out = index + (start + i) * r.neighbors;
        if (rows[i].error <= FLT_MAX) {
          finish(r, rows[i], found[i], out);
        } else {
          by_differences(r, rows[i].given, out);
        }
      }
    }
  }

  // Collect the candidates of a panel.
  void pass(long count, long first, long last) {
    for (long i = 0; i < count; i += ROWS) {
      products<FORM>(r, &rows[i], first, last, distance, stride);
      for (long row = i; row < std::min(i + ROWS, count); row++) {
        if (!(rows[row].error <= FLT_MAX)) continue;
        collect(found[row], distance + (row - i) * stride, last - first, first * LANES,
                r.neighbors, slack_of(rows[row], T()));
      }
    }
  }

#if defined(__AVX512VNNI__)
  // Solve for a single neighbor without storing distances.
  void solve_least(const float* points, long n, int32_t* index) {
    // Beside the rows. On the stack it may lie at their addresses up to whole pages, and then loads
    // wait for stores of others, three times as long in all.
    std::vector<Least> buffer(1);
    Least* least = &buffer[0];
    for (long start = 0; start < n; start += ROWS) {
      const long count = std::min<long>(ROWS, n - start);
      prepare(points, start, count, n);
      for (int i = 0; i < ROWS; i++) least->one[i] = least->two[i] = ints{} + INT32_MAX;
      products<FORM>(r, &rows[0], 0, r.vectors, least, 0);
      for (long i = 0; i < count; i++) {
        if (rows[i].error <= FLT_MAX) {
          finish(r, rows[i], least->one[i], least->two[i], index + start + i);
        } else {
          by_differences(r, rows[i].given, index + start + i);
        }
      }
    }
  }
#endif
};

// References ---------------------------------------------------------------------------------

double sq_norm_of(const float* v, long width) {
  static const std::vector<float> zeros(MOST_ZEROS);
  double sum = 0;
  for (long j = 0; j < width; j += MOST_ZEROS) {
    sum += exact_distance(v + j, zeros.data(), std::min(MOST_ZEROS, width - j));
  }
  return sum;
}

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
    Row row = {r.rows + i * r.width, r.centred + i * r.padded};
    center(r, row, row.given);
    most = std::max(most, row.most);
    const double squares = sq_norm_of(row.centred, r.padded);
    r.half_norms[i] = float(squares / 2);
    reach = squares <= reach ? reach : squares;  // keeps what is not a number
  }
  r.reach = float(sqrt(reach));
  return most;
}

// Put rows `[LANES, size]` side by side: `[size, LANES]`.
template <class T>
void interleave(const T* rows, long stride, long size, T* out) {
  for (long j = 0; j < size; j++) {
    for (long i = 0; i < LANES; i++) out[j * LANES + i] = rows[i * stride + j];
  }
}

void pack_floats(References& r) {
  r.packed = aligned(r.packed_buffer, r.vectors * r.width * LANES);
  std::vector<float> rows(LANES * r.padded);
  for (long v = 0; v < r.vectors; v++) {
    const long count = std::min<long>(LANES, r.count - v * LANES);
    std::fill(rows.begin(), rows.end(), 0.0f);
    std::copy_n(r.centred + v * LANES * r.padded, count * r.padded, rows.begin());
    interleave(rows.data(), r.padded, r.width, r.packed + v * LANES * r.width);
  }
  r.centred_buffer = {};
}

// Round the references to integers of type T, and write what their products begin with.
template <class T>
void pack_integers(References& r, float most) {
  const bool words = sizeof(T) == 2;
  // |q|^2/2 in units of both scales and the product are at most 2^29 each, for bytes less.
  r.most = words ? std::min(32767, int(sqrt(0x1p29 / double(r.width)))) : 127;
  r.scale = std::max(most / float(r.most), 1e-30f);
  const float inverse = 1 / r.scale;
  r.integers = aligned(r.integer_buffer, r.vectors * r.group * LANES);
  std::vector<int32_t> offsets(r.vectors * LANES), rows(LANES * r.group);
  double lost = 0;
  for (long v = 0; v < r.vectors; v++) {
    std::fill(rows.begin(), rows.end(), 0);
    for (long i = v * LANES; i < std::min(r.count, (v + 1) * LANES); i++) {
      T* to = reinterpret_cast<T*>(&rows[i % LANES * r.group]);
      double squares = 0;
      int32_t sum = 0;
      for (long j = 0; j < r.width; j++) {
        const float given = r.centred[i * r.padded + j];
        const int integer = std::clamp(int(rintf(given * inverse)), -r.most, r.most);
        const double rest = given - double(r.scale) * integer;
        squares += rest * rest;
        sum += integer;
        to[j] = T(-integer);
      }
      offsets[i] = words ? 0 : 128 * sum;  // bytes of points have 128 more
      lost = std::max(lost, squares);
    }
    interleave(rows.data(), r.group, r.group, r.integers + v * LANES * r.group);
  }
  r.lost = float(1.0001 * sqrt(lost));
  r.starts = aligned(r.start_buffer, LEVELS * r.vectors * LANES);
  for (int level = 0; level < LEVELS; level++) {
    const int own = std::max(level, words ? MIDDLE - 2 : 0);  // less would overflow
    r.scales[level] = r.scale * exp2f((own - MIDDLE) / 2.0f);
    const double unit = 1 / (double(r.scale) * r.scales[level]);
    int32_t* starts = r.starts + level * r.vectors * LANES;
    for (long i = 0; i < r.vectors * LANES; i++) {
      const double half = std::min(r.half_norms[i] * unit, double(NO_REFERENCE));
      starts[i] = int32_t(rint(half)) + offsets[i];
    }
  }
}

}  // namespace

// Prepare references, float32 `[count, width]`, which must live as long as the result.
//
// If `overflow` is 0, a point has no neighbors if a distance overflows float32.
EXPORT void* rknn_prepare(const float* rows, long count, long width, long neighbors, int form,
                          int overflow) {
  auto* r = new References();
  r->rows = rows;
  r->most_distance = overflow ? DBL_MAX : FLT_MAX;
  r->count = count;
  r->width = width;
  r->neighbors = neighbors;
  r->form = FLOATS;
#if defined(__AVX512VNNI__)
  if (width <= MOST_WIDTH) r->form = Form(form);
#endif
  const int together = r->form == BYTES ? 4 : r->form == WORDS ? 2 : 1;
  r->group = round_up(width, together) / together;
  r->padded = round_up(width, LANES);
  r->vectors = round_up(count, LANES) / LANES;
  r->panel = std::clamp<long>(PANEL_BYTES / (4 * LANES * r->group), MOST_VECTORS, MOST_PANEL);
  const float most = center_all(*r);
  if (!(r->reach <= FLT_MAX)) return r;  // all rows are solved by differences
  if (r->form == FLOATS) pack_floats(*r);
  if (r->form == WORDS) pack_integers<int16_t>(*r, most);
  if (r->form == BYTES) pack_integers<int8_t>(*r, most);
  return r;
}

EXPORT void rknn_release(void* prepared) { delete static_cast<References*>(prepared); }

// Write the numbers of the nearest references, int32 `[n, k]`, of points float32 `[n, width]`.
EXPORT void rknn_nearest(const void* prepared, const float* points, long n, int32_t* index) {
  const References& r = *static_cast<const References*>(prepared);
  if (!(r.reach <= FLT_MAX)) {
    for (long i = 0; i < n; i++) by_differences(r, points + i * r.width, index + i * r.neighbors);
  } else if (r.form == FLOATS) {
    Solver<float, FLOATS>(r).solve(points, n, index);
#if defined(__AVX512VNNI__)
  } else if (r.form == BYTES) {
    Solver<int32_t, BYTES>(r).solve(points, n, index);
  } else if (r.neighbors == 1 && r.vectors <= NUMBER + 1) {
    Solver<int32_t, WORDS>(r).solve_least(points, n, index);
  } else {
    Solver<int32_t, WORDS>(r).solve(points, n, index);
#endif
  }
}
