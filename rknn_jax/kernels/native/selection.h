// Selection of the smallest of many distances, in the order of their sizes.

#pragma once

#include <math.h>

#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr long FEW = 3 * LANES;  // most distances that are sorted by their ranks
constexpr long SAMPLE = 1024;     // of distances, for a bound of the k-th
constexpr long MOST_GROUPS = 32;  // vectors of minima that bound the k-th distance

// Return how many candidates are kept. Sorting more of them takes longer than dropping some.
inline long most_kept(long k) { return 4 * k + FEW; }

// Candidates of a point, and a bound for the k-th smallest distance.
template <class T>
struct Found {
  std::vector<T> distance;
  std::vector<int32_t> number;
  long count, most;  // candidates, and how many of them are kept before some are dropped
  T kth;

  void clear(long k) {
    count = 0;
    most = most_kept(k);
    kth = Of<T>::MOST;
    reserve(most);
  }
  void reserve(long size) {
    if (long(distance.size()) >= size + LANES) return;
    distance.resize(size + size / 2 + LANES);
    number.resize(size + size / 2 + LANES);
  }
};

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
  if (groups == vectors || groups > MOST_GROUPS) return Of<T>::MOST;
  T minima[MOST_GROUPS * LANES];
  for (long g = 0; g < groups; g++) {
    vector least = load(distance + g * LANES);
    for (long v = g + groups; v < vectors; v += groups) {
      least = smaller(load(distance + v * LANES), least);
    }
    store(minima + g * LANES, least);
  }
  if (groups * LANES > FEW) {
    std::nth_element(minima, minima + (k - 1), minima + groups * LANES);
    return std::min(minima[k - 1], Of<T>::MOST);
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

// Return the k-th smallest of some distances.
template <class T>
T kth_of(const T* distance, long count, long k) {
  if (k == 1) return *std::min_element(distance, distance + count);
  std::vector<T> sorted(distance, distance + count);
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end());
  return sorted[k - 1];
}

// Return how many distances are at most the limit.
template <class T>
long count_at_most(const T* distance, long count, T limit) {
  long below = 0, i = 0;
  for (; i + LANES <= count; i += LANES) {
    below += __builtin_popcount(at_most(load(distance + i), limit));
  }
  for (; i < count; i++) below += distance[i] <= limit;
  return below;
}

// Return a distance that k of many distances are at most, and fewer than 2k.
//
// It is looked for in a sample, three standard deviations of its rank above the k-th.
template <class T>
T about_kth(const T* distance, long count, long k) {
  if (count < 4 * SAMPLE) return kth_of(distance, count, k);
  T sample[SAMPLE];
  for (long i = 0; i < SAMPLE; i++) sample[i] = distance[i * count / SAMPLE];
  const double share = double(k) / count;
  const long rank = long(SAMPLE * share + 3 * sqrt(SAMPLE * share * (1 - share)));
  if (rank >= SAMPLE) return kth_of(distance, count, k);
  std::nth_element(sample, sample + rank, sample + SAMPLE);
  const long below = count_at_most(distance, count, sample[rank]);
  return k <= below && below < 2 * k ? sample[rank] : kth_of(distance, count, k);
}

// Drop candidates that are too far from a bound of the k-th to be among the k nearest.
template <class T>
void drop(Found<T>& found, T kth, T slack) {
  found.reserve(found.count);  // whole vectors are read
  found.kth = kth;
  const T limit = limit_of(kth, slack);
  long kept = 0;
  for (long i = 0; i < found.count; i += LANES) {
    const auto distance = load(&found.distance[i]);
    const auto number = load(&found.number[i]);
    const long left = found.count - i;
    const unsigned bits = at_most(distance, limit) & (left < LANES ? (1u << left) - 1 : ~0u);
    squeeze(&found.distance[kept], distance, bits);
    squeeze(&found.number[kept], number, bits);
    kept += __builtin_popcount(bits);
  }
  found.count = kept;
}

// Drop candidates that are too far from the k-th.
template <class T>
void shrink(Found<T>& found, long k, T slack) {
  if (found.count > k) drop(found, kth_of(&found.distance[0], found.count, k), slack);
}

template <class T>
typename Of<T>::vector least_of_four(const T* d) {
  return smaller(smaller(load(d), load(d + LANES)),
                 smaller(load(d + 2 * LANES), load(d + 3 * LANES)));
}

// Add the candidates of a panel, which begins with the reference `first`.
template <class T>
void collect(Found<T>& found, const T* distance, long vectors, long first, long k, T slack) {
  // For many neighbors, the bound of one panel is enough: later ones would cost more than they drop.
  if (found.kth == Of<T>::MOST || 3 * k / 2 <= FEW) {
    found.kth = std::min(found.kth, bound_of_kth(distance, vectors, k));
  }
  T limit = limit_of(found.kth, slack);
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
    if (found.count > found.most) {
      drop(found, about_kth(&found.distance[0], found.count, k), slack);
      limit = limit_of(found.kth, slack);
      found.most = std::max(most_kept(k), 2 * found.count);
    }
  }
}

// Distance and number, of which the first sorts as an integer.
struct Keyed {
  uint32_t key;
  int32_t number;
};

// Sort many candidates by one byte of their keys after another.
inline void sort_many(Found<float>& found) {
  const long count = found.count;
  std::vector<Keyed> from(count), to(count);
  uint32_t starts[4][256] = {};
  for (long i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &found.distance[i], 4);
    const uint32_t key = bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
    from[i] = {key, found.number[i]};
    for (int b = 0; b < 4; b++) starts[b][key >> 8 * b & 255]++;
  }
  for (int b = 0; b < 4; b++) {
    uint32_t before = 0;
    for (uint32_t& start : starts[b]) before += std::exchange(start, before);
    for (const Keyed& one : from) to[starts[b][one.key >> 8 * b & 255]++] = one;
    from.swap(to);
  }
  for (long i = 0; i < count; i++) {
    const uint32_t key = from[i].key;
    const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu);
    memcpy(&found.distance[i], &bits, 4);
    found.number[i] = from[i].number;
  }
}

// Put candidates into the order of their distances.
inline void sort(Found<float>& found) {
  const long count = found.count;
  if (count > FEW) return sort_many(found);
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

}  // namespace
