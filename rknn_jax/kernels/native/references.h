// References of `nearest.cc`, centered and packed for products, and a point beside them.

#pragma once

#include <float.h>
#include <math.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
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

// References and neighbors that are asked for.
struct Question {
  const float* rows;  // [count, width], the caller's
  long count, width, neighbors;
  Form form;
  double most_distance;  // squared, that a point with neighbors may have to any reference
  bool cosine;           // whether points are scaled to length 1, as the rows are
};

struct References {
  Question asked;
  const float* rows;  // [count, width], without copies
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
  std::vector<int32_t> copies, first;  // rows of the caller equal to row i: copies[first[i]], ...
  std::vector<float> row_buffer, centre_buffer, packed_buffer, half_buffer;
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

uint64_t hash_of(const float* row, long width) {
  words hash = {};
  for (long j = 0; j < width; j += LANES) {
    const floats v = j + LANES <= width ? load(row + j) : load_some(row + j, width - j);
    hash = (hash ^ (words)v) * 0x9E3779B1u;
    hash ^= hash >> 15;
  }
  uint64_t all = 0;
  for (int lane = 0; lane < LANES; lane++) all = (all ^ hash[lane]) * 0x9E3779B97F4A7C15u;
  return all;
}

// Keep one row of those that are equal to the bit: all have the same distances.
void leave_out_copies(References& r) {
  const Question& asked = r.asked;
  const auto row = [&](int32_t i) { return asked.rows + i * asked.width; };
  std::vector<std::pair<uint64_t, int32_t>> hashed(asked.count);
  for (int32_t i = 0; i < asked.count; i++) hashed[i] = {hash_of(row(i), asked.width), i};
  std::sort(hashed.begin(), hashed.end());
  std::vector<int32_t> original(asked.count);
  long start = 0;  // of equal hashes, whose rows are almost certainly equal
  r.count = asked.count;
  for (long i = 0; i < asked.count; i++) {
    if (hashed[i].first != hashed[start].first) start = i;
    const int32_t own = hashed[i].second, other = hashed[start].second;
    const bool same = i > start && !memcmp(row(own), row(other), sizeof(float) * asked.width);
    original[own] = same ? other : own;
    r.count -= same;
  }
  r.rows = asked.rows;
  r.neighbors = std::min(asked.neighbors, r.count);
  if (r.count == asked.count) return;
  std::vector<int32_t> number(asked.count);
  r.first.assign(r.count + 1, 0);
  r.row_buffer.resize(r.count * asked.width);
  long count = 0;
  for (int32_t i = 0; i < asked.count; i++) {
    if (original[i] == i) {
      number[i] = count;
      std::copy_n(row(i), asked.width, &r.row_buffer[count++ * asked.width]);
    }
    r.first[number[original[i]] + 1]++;
  }
  for (long i = 0; i < r.count; i++) r.first[i + 1] += r.first[i];
  std::vector<int32_t> next(r.first.begin(), r.first.end() - 1);
  r.copies.resize(asked.count);
  for (int32_t i = 0; i < asked.count; i++) r.copies[next[number[original[i]]]++] = i;
  r.rows = r.row_buffer.data();
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

std::unique_ptr<References> packed(const Question& asked, Form form) {
  auto r = std::make_unique<References>();
  r->asked = asked;
  r->width = asked.width;
  r->form = form;
  leave_out_copies(*r);
  const int together = form == BYTES ? 4 : form == WORDS ? 2 : 1;
  r->group = round_up(r->width, together) / together;
  r->padded = round_up(r->width, LANES);
  r->least_norm = sqrtf(float(r->padded)) * 0x1p-63f;
  r->vectors = round_up(r->count, LANES) / LANES;
  const long bytes = std::max(1L, 4 * LANES * r->group);
  r->cached = std::max<long>(CACHED_BYTES / bytes, MOST_VECTORS);
  const float most = center_all(*r);
  if (!(r->reach <= FLT_MAX)) return r;  // all points are solved by differences
  if (form == FLOATS) pack_floats(*r);
  if (form == WORDS) pack_integers<int16_t>(*r, most);
  if (form == BYTES) pack_integers<int8_t>(*r, most);
  return r;
}

// References of a question, packed for a form when it is first needed.
class Prepared {
  std::once_flag once[2];
  std::unique_ptr<References> references[2];

 public:
  Question asked;

  explicit Prepared(const Question& given) : asked(given) {
    if (asked.width > MOST_WIDTH) asked.form = FLOATS;
#if !defined(__AVX512VNNI__)
    if (asked.form == BYTES) asked.form = WORDS;
#endif
  }

  // Return the references as integers or, if `floats`, in float32.
  const References& of(bool floats) {
    std::call_once(once[floats], [&] {
      references[floats] = packed(asked, floats ? FLOATS : asked.form);
    });
    return *references[floats];
  }
};

}  // namespace
