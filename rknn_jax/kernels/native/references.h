// References of `nearest.cc`, centered and packed for products, and a point beside them.

#pragma once

#include <float.h>
#include <math.h>

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

enum Form { FLOATS = 0, WORDS = 1, BYTES = 2 };

constexpr int ROWS = LANES == 16 ? 8 : 4;  // points of a product; its sums fill the registers
constexpr int MOST_VECTORS = 3;            // vectors of references of a product
constexpr int MOST_PANEL = 64;             // vectors of references whose distances exist at a time
constexpr long CACHED_BYTES = 384 << 10;   // of references that stay in a core's cache
constexpr long MOST_WIDTH = 8192;          // features whose integer products fit an int32
constexpr int LEVELS = 13;                 // scales that a point may have, and the middle one, which
constexpr int MIDDLE = 6;                  // is that of the references; two of them are an octave
constexpr int NUMBER = 4096 / LANES - 1;   // bits of a key that number its vector of references
constexpr long MOST_ZEROS = 1024;          // features whose squares are summed at a time
constexpr int32_t NO_REFERENCE = Of<int32_t>::MOST + 2 * (NUMBER + 1);  // also its key is above MOST

long round_up(long size, long unit) { return (size + unit - 1) / unit * unit; }

template <class T>
T* aligned(std::vector<T>& buffer, size_t size) {
  buffer.assign(size + 64 / sizeof(T), T(0));
  return reinterpret_cast<T*>(round_up(reinterpret_cast<intptr_t>(buffer.data()), 64));
}

struct References {
  const float* rows;  // [count, width], the caller's
  double most_distance;  // squared, that a point with neighbors may have to any reference
  long count, width, neighbors, vectors;
  long cached;  // vectors of references that stay in a core's cache
  long padded;  // width up to whole vectors
  long group;   // pairs of words or quadruples of bytes that hold all features
  Form form;
  float* centre;         // [padded]
  float* packed;         // [vectors, width, LANES], of floats
  int32_t* integers;     // [vectors, group, LANES], -q in units of its scale
  int32_t* starts;       // [LEVELS, vectors * LANES], what products of integers begin with
  float* half_norms;     // [vectors * LANES], |q|^2 / 2, more than MOST for the padding
  float reach;           // the greatest |q|
  float least_norm;      // of a point, whose squares may be below the range of float32
  float lost;            // the greatest norm of what integers lose
  float scale;           // of the integers
  float scales[LEVELS];  // that points may have, ascending
  int most;              // the greatest size of an integer
  std::vector<float> centre_buffer, packed_buffer, half_buffer;
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

double exact_distance(const float* x, const float* q, long width) {
  doubles sum[2] = {};
  long j = 0;
  for (; j + 8 <= width; j += 8) {
    UNROLLED for (int i = 0; i < 2; i++) {
      const doubles apart = load_doubles(x + j + 4 * i) - load_doubles(q + j + 4 * i);
      sum[i] += apart * apart;
    }
  }
  double rest = 0;
  for (; j < width; j++) rest += (double(x[j]) - q[j]) * (double(x[j]) - q[j]);
  UNROLLED for (int i = 0; i < 2; i++) {
    for (int lane = 0; lane < 4; lane++) rest += sum[i][lane];
  }
  return rest;
}

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
  x.norm = sqrtf(sum_of(squares)) + r.least_norm;
  x.most = -least_of(most);
}

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
  std::fill(r.half_norms + r.count, r.half_norms + r.vectors * LANES, FLT_MAX);
  std::vector<float> centred(r.padded);
  float most = 0;
  double reach = 0;
  for (long i = 0; i < r.count; i++) {
    Row row = {r.rows + i * r.width, centred.data()};
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
    std::fill(rows.begin(), rows.end(), 0.0f);
    for (long i = v * LANES; i < std::min(r.count, (v + 1) * LANES); i++) {
      Row row = {r.rows + i * r.width, &rows[i % LANES * r.padded]};
      center(r, row, row.given);
    }
    interleave(rows.data(), r.padded, r.width, r.packed + v * LANES * r.width);
  }
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
  std::vector<float> centred(r.padded);
  double lost = 0;
  for (long v = 0; v < r.vectors; v++) {
    std::fill(rows.begin(), rows.end(), 0);
    for (long i = v * LANES; i < std::min(r.count, (v + 1) * LANES); i++) {
      T* to = reinterpret_cast<T*>(&rows[i % LANES * r.group]);
      double squares = 0;
      int32_t sum = 0;
      Row row = {r.rows + i * r.width, centred.data()};
      center(r, row, row.given);
      for (long j = 0; j < r.width; j++) {
        const float given = centred[j];
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
