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
// depends on the point and the references alone. Of references that are equal, one is multiplied.
//
// The forms are float32; words, which round features to about eleven bits and need half of the
// time, with AVX2 two thirds; and bytes, with AVX-512 alone, which need a quarter of it and leave
// more candidates.
//
// The rows of NumPy arrays are read where they are. XLA's programs call a handler, on XLA's threads.

#include <float.h>
#include <math.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "products.h"
#include "proofs.h"
#include "references.h"
#include "selection.h"
#include "vectors.h"

namespace {

constexpr long TILE = 256;    // points that share a panel, if there are several
constexpr long BLOCK = 2048;  // points of a task, at most
constexpr long FEWEST = 8;    // points up to which packing the references does not pay
constexpr long RETRIED = 64;  // tiles after which the first way is tried again
constexpr double MOST_LEAST = 16;  // candidates of a point without distances, on average
constexpr double SHARE = 0.04;     // of the references, as candidates after a product of integers

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

// Scale a point to length 1, as `neighbors._unit` does, with its two more columns.
void scale_to_unit(const float* given, long width, float* out) {
  float most = 0;
  for (long j = 0; j < width; j++) most = fabsf(given[j]) > most ? fabsf(given[j]) : most;
  const float zero = most == 0;
  double squares = 0;
  for (long j = 0; j < width; j++) {
    out[j] = given[j] / (most + zero);
    squares += double(out[j]) * out[j];
  }
  const float length = float(sqrt(squares)) + zero;
  for (long j = 0; j < width; j++) out[j] /= length;
  out[width] = zero;
  out[width + 1] = 0;
}

// Solves points by products of a form; T is the type of their distances.
template <class T, Form FORM>
struct Solver {
  const References& r;
  const bool least;  // whether the nearest is found without distances
  const long given;  // features of a given point
  const long panel, tile, stride;
  std::vector<float> unit_buffer, centred_buffer;
  std::vector<int32_t> integer_buffer;
  std::vector<T> distance_buffer;
  std::vector<Row> rows;
  std::vector<Found<T>> found;
  Found<float> again;
  T* distance;

  Solver(const References& r, bool least)
      : r(r),
        least(least),
        given(r.asked.cosine ? r.width - 2 : r.width),
        panel(least ? r.cached : std::min<long>(r.cached, MOST_PANEL)),
        tile(r.vectors <= panel ? ROWS : TILE),
        stride(std::min(panel, r.vectors) * LANES),
        unit_buffer(r.asked.cosine ? tile * r.width : 0),
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
      const float* own = points + (start + i) * given;
      const float* later = own + std::min<long>(ROWS, n - 1 - start - i) * given;
      row.given = own;
      if (r.asked.cosine) {
        float* unit = &unit_buffer[i * r.width];
        scale_to_unit(own, given, unit);
        row.given = unit;
      }
      center(r, row, later);
      if constexpr (FORM != FLOATS) round_point<FORM>(r, row);
      row.error = bound_of_error(r, row);
    }
  }

  // Solve points. Returns how many candidates took more time, of all points together.
  long solve(const float* points, long n, int32_t* index) {
    long candidates = 0;
    for (long start = 0; start < n; start += tile) {
      const long count = std::min(tile, n - start);
      prepare(points, start, count, n);
      int32_t* out = index + start * r.asked.neighbors;
      candidates += least ? solve_least(count, out) : solve_all(count, out);
    }
    return candidates;
  }

  long solve_all(long count, int32_t* index) {
    for (long i = 0; i < count; i++) found[i].clear(r.neighbors);
    for (long first = 0; first < r.vectors; first += panel) {
      pass(count, first, std::min(first + panel, r.vectors));
    }
    long candidates = 0;
    for (long i = 0; i < count; i++) {
      int32_t* out = index + i * r.asked.neighbors;
      if (rows[i].error <= FLT_MAX) {
        candidates += finish(r, rows[i], found[i], again, out);
      } else {
        by_differences(r.asked, rows[i].given, out);
      }
    }
    return candidates;
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
  long solve_least(long count, int32_t* index) {
    // Beside the rows. On the stack it may lie at their addresses up to whole pages, and then loads
    // wait for stores of others, three times as long in all.
    least_buffer.resize(tile / ROWS);
    const auto most = std::numeric_limits<T>::max() - typename Of<T>::vector{};
    for (Least<T>& keys : least_buffer) {
      for (int i = 0; i < ROWS; i++) keys.one[i] = keys.two[i] = most;
    }
    for (long first = 0; first < r.vectors; first += panel) {
      const long last = std::min(first + panel, r.vectors);
      for (long i = 0; i < count; i += ROWS) {
        products<FORM>(r, &rows[i], first, last, &least_buffer[i / ROWS], 0);
      }
    }
    long candidates = 0;
    for (long i = 0; i < count; i++) {
      const Least<T>& keys = least_buffer[i / ROWS];
      int32_t* out = index + i * r.asked.neighbors;
      if (rows[i].error <= FLT_MAX) {
        candidates += finish(r, rows[i], keys.one[i % ROWS], keys.two[i % ROWS], again, out);
      } else {
        by_differences(r.asked, rows[i].given, out);
      }
    }
    return candidates;
  }

  std::vector<Least<T>> least_buffer;
};

// Ways ---------------------------------------------------------------------------------------

// Ways to solve points: by the form that is asked for or by float32, and in either for a single
// neighbor without distances or with them. The first ones are the fastest unless they leave many
// candidates.
enum Way { OWN_LEAST, OWN, FLOATS_LEAST, FLOATS_ALL };

// Solves points of a block in any way.
template <class T, Form FORM>
struct Solvers {
  Prepared& prepared;
  std::optional<Solver<T, FORM>> own[2] = {};
  std::optional<Solver<float, FLOATS>> floats[2] = {};

  long solve(int way, const float* points, long n, int32_t* index) {
    const bool least = way == OWN_LEAST || way == FLOATS_LEAST;
    const auto by = [&](auto& solver, bool in_floats) {
      if (!solver) solver.emplace(prepared.of(in_floats), least);
      return solver->solve(points, n, index);
    };
    return way < FLOATS_LEAST ? by(own[least], FORM == FLOATS) : by(floats[least], true);
  }
};

// Return the first of the ways from `way` on that there is.
int existing(const References& r, int way) {
  const bool least = r.neighbors == 1 && r.vectors <= NUMBER + 1;
  if (way == OWN_LEAST && (!least || r.form == BYTES)) return OWN;  // bytes are too coarse for it
  return way == FLOATS_LEAST && !least ? int(FLOATS_ALL) : way;
}

// Solve a block. `course` is the way that the candidates of earlier points suggest. It decides the
// time, and never a neighbor.
template <class T, Form FORM>
void solve_block(Prepared& prepared, std::atomic<int>& course, const float* points, long start,
                 long stop, int32_t* index) {
  const References& r = prepared.of(FORM == FLOATS);
  const long width = r.asked.cosine ? r.width - 2 : r.width;
  const int first = existing(r, OWN_LEAST), last = FORM == FLOATS ? OWN : FLOATS_ALL;
  Solvers<T, FORM> solvers{prepared};
  for (; start < stop; start += TILE) {
    const long n = std::min(TILE, stop - start);
    const int way = start / TILE % RETRIED ? course.load() : first;
    const long candidates =
        solvers.solve(way, points + start * width, n, index + start * r.asked.neighbors);
    const double most = way == OWN ? double(r.neighbors) + SHARE * double(r.count) : MOST_LEAST;
    if (double(candidates) <= most * double(n)) {
      course = way;
    } else if (way < last && way >= course) {
      course = existing(r, way + 1);
    }
  }
}

template <class Task>
void solve_form(const Prepared& prepared, const Task& task) {
  if (prepared.asked.form == FLOATS) return task(std::integral_constant<Form, FLOATS>(), float());
#if defined(__AVX512VNNI__)
  if (prepared.asked.form == BYTES) return task(std::integral_constant<Form, BYTES>(), int32_t());
#endif
  task(std::integral_constant<Form, WORDS>(), int32_t());
}

// Write the numbers of the nearest references, `[n, k]`. Returns whether there was memory for it.
template <class Pool>
bool solve(Pool& pool, Prepared& prepared, const float* points, long n, int32_t* index) try {
  const Question& asked = prepared.asked;
  if (n <= FEWEST || !(prepared.of(asked.form == FLOATS).reach <= FLT_MAX)) {
    const long width = asked.cosine ? asked.width - 2 : asked.width;
    std::vector<float> unit(asked.width);
    for (long i = 0; i < n; i++) {
      const float* own = points + i * width;
      if (asked.cosine) scale_to_unit(own, width, unit.data());
      by_differences(asked, asked.cosine ? unit.data() : own, index + i * asked.neighbors);
    }
    return true;
  }
  const long threads = std::max<long>(1, pool.num_threads());
  const long size = std::min(BLOCK, round_up((n + threads - 1) / threads, TILE));
  std::atomic<int> course{existing(prepared.of(asked.form == FLOATS), OWN_LEAST)};
  std::atomic<bool> failed{false};
  in_parallel(pool, (n + size - 1) / size, [&](long block) {
    try {
      const auto solve_one = [&](auto form, auto type) {
        solve_block<decltype(type), decltype(form)::value>(
            prepared, course, points, block * size, std::min(n, (block + 1) * size), index);
      };
      solve_form(prepared, solve_one);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  return !failed;
} catch (const std::bad_alloc&) {
  return false;
}

// Threads for callers outside of XLA, as `ffi::ThreadPool`.
class Threads {
  const long count;
  std::vector<std::thread> started;

 public:
  explicit Threads(long count) : count(count) {}
  ~Threads() {
    for (std::thread& thread : started) thread.join();
  }
  long num_threads() const { return count; }
  template <class Work>
  void Schedule(const Work& work) try {
    started.emplace_back(work);
  } catch (const std::system_error&) {  // no thread is left, and the others do the work
  }
};

// Programs of XLA ----------------------------------------------------------------------------

// Return which array of a batch a result belongs to, where batch dimensions of 1 serve all.
long place_in(ffi::Span<const int64_t> mine, ffi::Span<const int64_t> result, long batch) {
  long place = 0, step = 1;
  for (long d = long(result.size()) - 3; d >= 0; d--) {
    place += mine[d] > 1 ? batch % result[d] * step : 0;
    step *= mine[d];
    batch /= result[d];
  }
  return place;
}

// points [..., n, f], references [..., s, f] -> numbers [..., n, k].
ffi::Error find_nearest(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> points,
                        ffi::Buffer<ffi::F32> references, ffi::ResultBuffer<ffi::S32> numbers,
                        int32_t form, bool cosine) {
  const auto given = points.dimensions(), rows = references.dimensions();
  const auto result = numbers->dimensions();
  const size_t last = given.size() - 1;
  const long n = given[last - 1], k = result.back();
  const Question asked = {nullptr, rows[last - 1], rows[last], k, Form(form), FLT_MAX, cosine};
  const long batch = n * k ? numbers->element_count() / (n * k) : 0;
  // Points of a batch with the same references are solved together.
  const bool shared = long(references.element_count()) == asked.count * asked.width &&
                      long(points.element_count()) == batch * n * given[last];
  for (long b = 0; b < (shared ? std::min(batch, 1L) : batch); b++) {
    Question own = asked;
    own.rows = references.typed_data() + place_in(rows, result, b) * asked.count * asked.width;
    Prepared prepared(own);
    const float* from = points.typed_data() + place_in(given, result, b) * n * given[last];
    if (!solve(pool, prepared, from, shared ? batch * n : n, numbers->typed_data() + b * n * k)) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "Not enough memory for neighbors.");
    }
  }
  return ffi::Error::Success();
}

}  // namespace

EXPORT XLA_FFI_Error* rknn_nearest(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(rknn_nearest, find_nearest,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<int32_t>("form")
                                  .Attr<bool>("cosine"));

// NumPy --------------------------------------------------------------------------------------

// Prepare references, float32 `[count, width]`, which must live as long as the result.
//
// If `overflow` is 0, a point has no neighbors if a distance overflows float32. If `cosine` is not,
// points are scaled to length 1, and the references have two more columns than they. Returns a null
// pointer if there is no memory.
EXPORT void* rknn_prepare(const float* rows, long count, long width, long neighbors, int form,
                          int overflow, int cosine) {
  const double most_distance = overflow ? DBL_MAX : FLT_MAX;
  const Question asked = {rows, count, width, neighbors, Form(form), most_distance, cosine != 0};
  return new (std::nothrow) Prepared(asked);
}

EXPORT void rknn_release(void* prepared) { delete static_cast<Prepared*>(prepared); }

// Write the numbers of the nearest references, int32 `[n, k]`, of points float32 `[n, width]`.
//
// Returns 0 if there is no memory.
EXPORT int rknn_nearest_of_arrays(void* prepared, const float* points, long n, int32_t* index,
                                  long threads) {
  Threads pool(threads);
  return solve(pool, *static_cast<Prepared*>(prepared), points, n, index);
}
