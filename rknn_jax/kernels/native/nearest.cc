// Exact nearest references of points: fast products, and a proof for each row.
//
// Half of |x - q|^2 is |q|^2/2 - <x, q> and a constant of the row. The steps of a point are:
//
// 1. A product with all references, in one of three forms, whose error has a bound. References that
//    are farther than the k-th by more than twice the bound are none of the k nearest.
// 2. After a product of integers, a float32 product with the others, and the same again. With many
//    neighbors, float64 differences take its place.
// 3. The others in the order of their distances. Neighbors in this order whose gap is at most twice
//    the bound are in doubt. Their distances in float64 decide, then the lowest number.
//
// So the answer always is float64's order, ties by the lowest number, as in `assignment.py`. It
// depends on the point and the references alone.
//
// The forms are float32; words, which round features to about eleven bits and need half of the
// time, with AVX2 two thirds; and bytes, with AVX-512 alone, which need a quarter of it and leave
// more candidates.

#include <float.h>
#include <math.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "products.h"
#include "references.h"
#include "selection.h"
#include "vectors.h"

namespace {

constexpr long TILE = 256;            // points that share a panel, if there are several
constexpr long AHEAD = 8;             // candidates whose memory is asked for early
constexpr long DENSE = 64;            // neighbors, so many that float32 leaves most in doubt
constexpr float UNIT = 0x1p-24f;      // largest relative error of a rounding
constexpr float MOST_SQUARE = 1e37f;  // of a distance, above which a sum may overflow

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

// Write half of the distances of candidates in float32, four references at a time.
void multiply_again(const References& r, const Row& x, Found<float>& found) {
  const long count = found.count;
  for (long c = 0; c < count; c += 4) {
    const float* rows[4];
    UNROLLED for (int i = 0; i < 4; i++) {
      rows[i] = r.rows + long(found.number[std::min(c + i, count - 1)]) * r.width;
    }
    floats sum[4] = {};
    for (long j = 0; j < r.padded; j += LANES) {
      const floats v = load(x.centred + j), centre = load(r.centre + j);
      const long left = r.width - j;
      UNROLLED for (int i = 0; i < 4; i++) {
        const floats q = left >= LANES ? load(rows[i] + j) : load_some(rows[i] + j, left);
        sum[i] += v * (q - centre);
      }
    }
    for (long i = 0; i < 4 && c + i < count; i++) {
      found.distance[c + i] = r.half_norms[found.number[c + i]] - sum_of(sum[i]);
    }
  }
}

// Write distances of candidates, rounded to float32 from float64.
//
// Their rows are far apart, and asked for early: waiting for memory would take most of the time.
void subtract(const References& r, const Row& x, Found<float>& found) {
  const int32_t* number = &found.number[0];
  for (long c = 0; c < found.count; c++) {
    const float* later = r.rows + long(number[std::min(c + AHEAD, found.count - 1)]) * r.width;
    for (long j = 0; j < r.width; j += 16) __builtin_prefetch(later + j, 0, 2);
    found.distance[c] = float(exact_distance(x.given, r.rows + long(number[c]) * r.width, r.width));
  }
}

// Solve a point, given the numbers of its candidates.
void refine(const References& r, const Row& x, Found<float>& found, int32_t* index) {
  if (r.neighbors < DENSE) {
    multiply_again(r, x, found);
    // Each lane sums its own features, and at last the lanes are summed.
    by_gaps(r, x, found, error_of_floats(r, x.norm, r.padded / LANES + LANES), index);
  } else {
    subtract(r, x, found);
    by_gaps(r, x, found, 0, index);  // rounding keeps the order, but for ties
  }
}

void finish(const References& r, const Row& x, Found<float>& found, Found<float>&, int32_t* index) {
  by_gaps(r, x, found, x.error, index);
}

void finish(const References& r, const Row& x, Found<int32_t>& found, Found<float>& again,
            int32_t* index) {
  shrink(found, r.neighbors, slack_of(x, int32_t()));
  if (found.count == 1) {
    index[0] = found.number[0];
  } else if (found.count > std::max(4 * r.neighbors + FEW, r.count / 2)) {
    by_differences(r, x.given, index);  // integers say next to nothing, and so may float32
  } else {
    again.clear(r.neighbors);
    again.reserve(found.count);
    again.count = found.count;
    std::copy_n(found.number.begin(), found.count, again.number.begin());
    refine(r, x, again, index);
  }
}

// Return the largest key of a candidate, given the least key.
//
// A key of floats differs from its distance by at most NUMBER units in the last place.
float limit_of_keys(const Row& x, float least) {
  return least + 1.01f * (2 * x.error + 2 * NUMBER * 0x1p-23f * fabsf(least));
}
int32_t limit_of_keys(const Row& x, int32_t least) {
  const int32_t slack = std::min(slack_of(x, int32_t()), Of<int32_t>::MOST - NUMBER) + NUMBER;
  return limit_of(least | NUMBER, slack);
}

// Write the nearest reference, given the two smallest keys of each lane.
template <class Keys>
void finish(const References& r, const Row& x, Keys one, Keys two, Found<float>& again,
            int32_t* index) {
  const auto limit = limit_of_keys(x, least_of(one));
  const unsigned lanes = at_most(one, limit);
  const unsigned crowded = at_most(two, limit);
  const ints vector = (ints)one & NUMBER;
  if (!crowded && !(lanes & (lanes - 1))) {
    const int lane = __builtin_ctz(lanes);
    index[0] = vector[lane] * LANES + lane;
    return;
  }
  again.clear(1);
  const auto add = [&](int32_t number) {
    again.reserve(again.count);
    again.number[again.count++] = number;
  };
  for (int lane = 0; lane < LANES; lane++) {
    if (crowded >> lane & 1) {  // a third one may be near, too
      for (int32_t i = lane; i < r.count; i += LANES) add(i);
    } else if (lanes >> lane & 1) {
      add(vector[lane] * LANES + lane);
    }
  }
  refine(r, x, again, index);
}

// Points -------------------------------------------------------------------------------------

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
    const ints integer = smaller(larger(rounded(v * (1 / own)), ints{} - r.most), ints{} + r.most);
    const floats rest = v - own * __builtin_convertvector(integer, floats);
    squares += rest * rest;
#if defined(__AVX512VNNI__)
    if (FORM == BYTES) store_bytes(x.integers + j / 4, integer + 128);
#endif
    if (FORM == WORDS) store_words(x.integers + j / 2, integer);
  }
  x.lost = 1.01f * sqrtf(sum_of(squares)) + 4 * UNIT * x.norm + r.least_norm;
}

// Solves points of a form; T is the type of its distances.
template <class T, Form FORM>
struct Solver {
  const References& r;
  const bool least;  // whether the nearest is found without distances; bytes are too coarse for it
  const long panel, tile, stride;
  std::vector<float> centred_buffer;
  std::vector<int32_t> integer_buffer;
  std::vector<T> distance_buffer;
  std::vector<Row> rows;
  std::vector<Found<T>> found;
  Found<float> again;
  T* distance;

  Solver(const References& r)
      : r(r),
        least(FORM != BYTES && r.neighbors == 1 && r.vectors <= NUMBER + 1),
        panel(least ? r.cached : std::min<long>(r.cached, MOST_PANEL)),
        tile(r.vectors <= panel ? ROWS : TILE),
        stride(std::min(panel, r.vectors) * LANES),
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
      if constexpr (FORM != FLOATS) round_point<FORM>(r, row);
      row.error = bound_of_error(r, row);
    }
  }

  void solve(const float* points, long n, int32_t* index) {
    for (long start = 0; start < n; start += tile) {
      const long count = std::min(tile, n - start);
      prepare(points, start, count, n);
      for (long i = 0; i < count; i++) found[i].clear(r.neighbors);
      for (long first = 0; first < r.vectors; first += panel) {
        pass(count, first, std::min(first + panel, r.vectors));
      }
      for (long i = 0; i < count; i++) {
        int32_t* out = index + (start + i) * r.neighbors;
        if (rows[i].error <= FLT_MAX) {
          finish(r, rows[i], found[i], again, out);
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

  // Solve for a single neighbor without storing distances.
  void solve_least(const float* points, long n, int32_t* index) {
    // Beside the rows. On the stack it may lie at their addresses up to whole pages, and then loads
    // wait for stores of others, three times as long in all.
    std::vector<Least<T>> buffer(tile / ROWS);
    const auto most = std::numeric_limits<T>::max() - typename Of<T>::vector{};
    for (long start = 0; start < n; start += tile) {
      const long count = std::min(tile, n - start);
      prepare(points, start, count, n);
      for (Least<T>& keys : buffer) {
        for (int i = 0; i < ROWS; i++) keys.one[i] = keys.two[i] = most;
      }
      for (long first = 0; first < r.vectors; first += panel) {
        const long last = std::min(first + panel, r.vectors);
        for (long i = 0; i < count; i += ROWS) {
          products<FORM>(r, &rows[i], first, last, &buffer[i / ROWS], 0);
        }
      }
      for (long i = 0; i < count; i++) {
        const Least<T>& keys = buffer[i / ROWS];
        if (rows[i].error <= FLT_MAX) {
          finish(r, rows[i], keys.one[i % ROWS], keys.two[i % ROWS], again, index + start + i);
        } else {
          by_differences(r, rows[i].given, index + start + i);
        }
      }
    }
  }
};

template <class T, Form FORM>
void solve(const References& r, const float* points, long n, int32_t* index) {
  Solver<T, FORM> solver(r);
  if (solver.least) {
    solver.solve_least(points, n, index);
  } else {
    solver.solve(points, n, index);
  }
}

}  // namespace

// Prepare references, float32 `[count, width]`, which must live as long as the result.
//
// If `overflow` is 0, a point has no neighbors if a distance overflows float32. Returns a null
// pointer if there is no memory.
EXPORT void* rknn_prepare(const float* rows, long count, long width, long neighbors, int form,
                          int overflow) try {
  auto r = std::make_unique<References>();
  r->rows = rows;
  r->most_distance = overflow ? DBL_MAX : FLT_MAX;
  r->count = count;
  r->width = width;
  r->neighbors = neighbors;
  r->form = width <= MOST_WIDTH ? Form(form) : FLOATS;
#if !defined(__AVX512VNNI__)
  if (r->form == BYTES) r->form = WORDS;
#endif
  const int together = r->form == BYTES ? 4 : r->form == WORDS ? 2 : 1;
  r->group = round_up(width, together) / together;
  r->padded = round_up(width, LANES);
  r->least_norm = sqrtf(float(r->padded)) * 0x1p-63f;
  r->vectors = round_up(count, LANES) / LANES;
  const long bytes = std::max(1L, 4 * LANES * r->group);
  r->cached = std::max<long>(CACHED_BYTES / bytes, MOST_VECTORS);
  const float most = center_all(*r);
  if (!(r->reach <= FLT_MAX)) return r.release();  // all rows are solved by differences
  if (r->form == FLOATS) pack_floats(*r);
  if (r->form == WORDS) pack_integers<int16_t>(*r, most);
  if (r->form == BYTES) pack_integers<int8_t>(*r, most);
  return r.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

EXPORT void rknn_release(void* prepared) { delete static_cast<References*>(prepared); }

// Write the numbers of the nearest references, int32 `[n, k]`, of points float32 `[n, width]`.
//
// Returns 0 if there is no memory.
EXPORT int rknn_nearest(const void* prepared, const float* points, long n, int32_t* index) try {
  const References& r = *static_cast<const References*>(prepared);
  if (!(r.reach <= FLT_MAX)) {
    for (long i = 0; i < n; i++) by_differences(r, points + i * r.width, index + i * r.neighbors);
  } else if (r.form == FLOATS) {
    solve<float, FLOATS>(r, points, n, index);
  } else if (r.form == WORDS) {
    solve<int32_t, WORDS>(r, points, n, index);
#if defined(__AVX512VNNI__)
  } else {
    solve<int32_t, BYTES>(r, points, n, index);
#endif
  }
  return 1;
} catch (const std::bad_alloc&) {
  return 0;
}
