// Proofs of `nearest.cc`: bounds of errors, and neighbors of a point from its candidates.

#pragma once

#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "products.h"
#include "references.h"
#include "selection.h"
#include "vectors.h"

namespace {

constexpr long AHEAD = 8;             // candidates whose memory is asked for early
constexpr long DENSE = 64;            // neighbors, so many that float32 leaves most in doubt
constexpr float UNIT = 0x1p-24f;      // largest relative error of a rounding
constexpr float MOST_SQUARE = 1e37f;  // of a distance, above which a sum may overflow

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
void by_differences(const Question& asked, const float* x, int32_t* index) {
  std::vector<Exact> all(asked.count);
  for (long i = 0; i < asked.count; i++) {
    all[i] = {exact_distance(x, asked.rows + i * asked.width, asked.width), int32_t(i)};
    if (!(all[i].distance <= asked.most_distance)) {
      std::fill(index, index + asked.neighbors, -1);
      return;
    }
  }
  std::partial_sort(all.begin(), all.begin() + asked.neighbors, all.end());
  for (long i = 0; i < asked.neighbors; i++) index[i] = all[i].number;
}

// Add a reference and its copies to the neighbors, of which there are `count`.
void add_neighbor(const References& r, int32_t number, int32_t* index, long& count) {
  if (r.copies.empty()) {
    index[count++] = number;
    return;
  }
  for (int32_t c = r.first[number]; c < r.first[number + 1] && count < r.asked.neighbors; c++) {
    index[count++] = r.copies[c];
  }
}

// Write the k nearest of the candidates, all of whose distances err by at most `error`.
void by_gaps(const References& r, const Row& x, Found<float>& found, float error, int32_t* index) {
  const long k = r.neighbors;
  if (found.count > most_kept(k)) shrink(found, k, 2 * error);
  if (found.count > 1) sort(found);
  const float* distance = &found.distance[0];
  const int32_t* number = &found.number[0];
  long count = 0;
  for (long start = 0, stop; start < k && count < r.asked.neighbors; start = stop) {
    stop = start + 1;
    while (stop < found.count && distance[stop] - distance[stop - 1] <= 2 * error) stop++;
    if (stop == start + 1) {
      add_neighbor(r, number[start], index, count);
      continue;
    }
    std::vector<Exact> doubtful;
    for (long i = start; i < stop; i++) {
      const int32_t own = number[i];
      const double apart = exact_distance(x.given, r.rows + long(own) * r.width, r.width);
      if (r.copies.empty()) {
        doubtful.push_back({apart, own});
        continue;
      }
      for (int32_t c = r.first[own]; c < r.first[own + 1]; c++) {
        doubtful.push_back({apart, r.copies[c]});
      }
    }
    std::sort(doubtful.begin(), doubtful.end());
    for (const Exact& next : doubtful) {
      if (count < r.asked.neighbors) index[count++] = next.number;
    }
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

// Solve a point, given the numbers of its candidates. Returns how many there are.
long refine(const References& r, const Row& x, Found<float>& found, int32_t* index) {
  const long count = found.count;
  if (r.neighbors < DENSE) {
    multiply_again(r, x, found);
    // Each lane sums its own features, and at last the lanes are summed.
    by_gaps(r, x, found, error_of_floats(r, x.norm, r.padded / LANES + LANES), index);
  } else {
    subtract(r, x, found);
    by_gaps(r, x, found, 0, index);  // rounding keeps the order, but for ties
  }
  return count;
}

// Write the nearest references, given candidates. Returns how many of them took more time.
long finish(const References& r, const Row& x, Found<float>& found, Found<float>&, int32_t* index) {
  by_gaps(r, x, found, x.error, index);
  return 0;
}

long finish(const References& r, const Row& x, Found<int32_t>& found, Found<float>& again,
            int32_t* index) {
  shrink(found, r.neighbors, slack_of(x, int32_t()));
  if (found.count == 1) {
    long count = 0;
    add_neighbor(r, found.number[0], index, count);
    return 1;
  }
  if (found.count > std::max(4 * r.neighbors + FEW, r.count / 2)) {
    by_differences(r.asked, x.given, index);  // integers say next to nothing, and so may float32
    return r.asked.count;
  }
  again.clear(r.neighbors);
  again.reserve(found.count);
  again.count = found.count;
  std::copy_n(found.number.begin(), found.count, again.number.begin());
  return refine(r, x, again, index);
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
long finish(const References& r, const Row& x, Keys one, Keys two, Found<float>& again,
            int32_t* index) {
  const auto limit = limit_of_keys(x, least_of(one));
  const unsigned lanes = at_most(one, limit);
  const unsigned crowded = at_most(two, limit);
  const ints vector = (ints)one & NUMBER;
  if (!crowded && !(lanes & (lanes - 1))) {
    const int lane = __builtin_ctz(lanes);
    long count = 0;
    add_neighbor(r, vector[lane] * LANES + lane, index, count);
    return 1;
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
  return refine(r, x, again, index);
}

}  // namespace
