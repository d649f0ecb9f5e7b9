// The keyed hash of `rknn_jax/kernels/hashing.py`, a vector of cells at a time.

#pragma once

#include "processor.h"

constexpr uint32_t FIRST_FACTOR = 0x9E3779B1u;

// Return the numbers first, first + 1, ..., which may wrap around.
inline words numbers_from(uint32_t first) {
  words numbers;
  for (int i = 0; i < LANES; i++) numbers[i] = first + i;
  return numbers;
}

// Hash cells that are multiplied by FIRST_FACTOR already, but for the last exclusive or.
inline words mix_high(words multiples, words one, words two) {
  words x = multiples + one;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) + two;
  x = x * 0x846CA68Bu;
  return (x ^ x >> 15) * 0xC2B2AE35u;
}

inline words mix(words multiples, words one, words two) {
  const words x = mix_high(multiples, one, two);
  return x ^ x >> 16;
}
