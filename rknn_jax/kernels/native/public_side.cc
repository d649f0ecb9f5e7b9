// The public side of the decoder: walks on the neighbor graph, and radial kernels of landmarks.
//
// Both sum in another order than NumPy and SciPy do, which compute the same without this library.

#include <math.h>

#include <algorithm>
#include <vector>

#include "processor.h"

namespace {

inline floats load(const float* from) { return *reinterpret_cast<const floats*>(from); }
inline void store(float* to, floats v) { *reinterpret_cast<floats*>(to) = v; }

// Rows of a graph, with the rows of a query together.
struct Graph {
  const int32_t* starts;   // [m + 1], of each row's neighbors
  const int32_t* columns;  // neighbors
  const float* weights;    // their weights
};

// Add a row's products with TILE vectors of columns to `after`, and write them there.
template <int TILE>
inline void multiply_row(const Graph& graph, long row, long width, const float* now, float* after) {
  floats sums[TILE];
#define EACH _Pragma("GCC unroll 8") for (int t = 0; t < TILE; t++)
  EACH sums[t] = load(after + t * LANES);
  for (long k = graph.starts[row]; k < graph.starts[row + 1]; k++) {
    const float* from = now + graph.columns[k] * width;
    EACH sums[t] += graph.weights[k] * load(from + t * LANES);
  }
  EACH store(after + t * LANES, sums[t]);
#undef EACH
}

// e^x of x <= 0, with a relative error of 2e-7, and at least e^-86.
inline floats exponential(floats x) {
  const floats zero = {}, shift = zero + 12582912.0f;  // 1.5 · 2^23 rounds
  const floats low = zero - 86.0f;
  x = x > low ? x : low;
  const floats shifted = x * 1.44269504f + shift;
  const floats n = shifted - shift;
  const floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const floats mantissa = p * (r * r) + r + 1.0f;
  return (floats)((ints)mantissa + ((ints)shifted << 23));
}

}  // namespace

// Take a step of the series of walks, for `width` columns, a multiple of 16.
//
// With `scale`, before <- graph · now - scale · before, less its means over the rows of each query.
// Each of three sums gains its term times that. Returns the sum of squares.
//
// starts [m + 1], columns, weights: graph; first [s + 1]: first row of each query.
EXPORT double rknn_walk_step(const int32_t* starts, const int32_t* columns, const float* weights,
                             const int64_t* first, long num_queries, long width, float scale,
                             const float* now, float* before, float* const* sums,
                             const float* terms) {
  const Graph graph = {starts, columns, weights};
  std::vector<float> mean(width);
  double squares = 0;
  for (long query = 0; query < num_queries; query++) {
    const long begin = first[query], end = first[query + 1];
    std::fill(mean.begin(), mean.end(), 0.0f);
    for (long row = begin; row < end; row++) {
      float* after = before + row * width;
      for (long i = 0; i < width; i += LANES) store(after + i, load(after + i) * -scale);
      long i = 0;
      for (; i + 4 * LANES <= width; i += 4 * LANES) {
        multiply_row<4>(graph, row, width, now + i, after + i);
      }
      for (; i < width; i += LANES) multiply_row<1>(graph, row, width, now + i, after + i);
      for (i = 0; i < width; i += LANES) store(&mean[i], load(&mean[i]) + load(after + i));
    }
    for (float& each : mean) each /= float(std::max(end - begin, 1L));
    floats square = {};
    for (long row = begin; row < end; row++) {
      for (long i = 0; i < width; i += LANES) {
        const long at = row * width + i;
        const floats value = load(before + at) - load(&mean[i]);
        store(before + at, value);
        square += value * value;
        for (int a = 0; a < 3; a++) store(sums[a] + at, load(sums[a] + at) + terms[a] * value);
      }
    }
    for (int lane = 0; lane < LANES; lane++) squares += square[lane];
  }
  return squares;
}

// Average three kernels over the landmarks of each query, for `width` rows, a multiple of 16.
//
// minus [l, width] holds what is to be less `own` of its landmark: negative squared distances then.
// The second kernel is e^(steep · that), the first its cube, and the third e^that.
//
// first [s + 1]: first landmark of each query; own [l]; means: three of [s, width].
EXPORT void rknn_radial_means(const float* minus, const float* own, const int64_t* first,
                              long num_queries, long width, float steep, float* const* means) {
  for (long query = 0; query < num_queries; query++) {
    const long begin = first[query], end = first[query + 1];
    const float weight = 1.0f / float(std::max(end - begin, 1L));
    for (long i = 0; i < width; i += LANES) {
      floats narrow = {}, middle = {}, wide = {};
      for (long landmark = begin; landmark < end; landmark++) {
        const floats zero = {};
        floats x = load(minus + landmark * width + i) - own[landmark];
        x = x < zero ? x : zero;
        const floats kernel = exponential(x * steep);
        narrow += kernel * kernel * kernel;
        middle += kernel;
        wide += exponential(x);
      }
      store(means[0] + query * width + i, narrow * weight);
      store(means[1] + query * width + i, middle * weight);
      store(means[2] + query * width + i, wide * weight);
    }
  }
}
