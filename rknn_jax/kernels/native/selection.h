// Selection of the smallest of many distances, in the order of their sizes.

#pragma once

#include <math.h>

#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr long FEW = 3 * LANES;  // most distances that are sorted by their ranks

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

}  // namespace
