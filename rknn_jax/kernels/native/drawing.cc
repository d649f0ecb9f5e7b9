// Random bits and random sets, packed: the bits that XLA's forms draw from the same seeds.

#include <math.h>

#include <algorithm>
#include <vector>

#include "hashing.h"
#include "parallel.h"

namespace {

constexpr long ROWS = 64;  // clients of a task
constexpr int TILE = 4;    // vectors of words that are compared at once

inline uint64_t any_bit(const words* vectors, int count) {
  words all = vectors[0];
  for (int t = 1; t < count; t++) all |= vectors[t];
  uint64_t halves[LANES / 2], found = 0;
  memcpy(halves, &all, sizeof(all));
  for (int i = 0; i < LANES / 2; i++) found |= halves[i];
  return found;
}

// A comparison of random numbers, of `digits` binary digits, with a threshold.
//
// A word of digit j, of 32 numbers and complemented, is the hash of its place + j·stride. Numbers
// are compared from the first digit on. Later digits are not drawn once all numbers are decided,
// which takes one digit more for twice as many numbers.
struct Numbers {
  const uint32_t* seed;
  uint32_t threshold;
  int digits;
  uint32_t stride;

  // Return the bits, at most those of `asked`, of numbers below the threshold.
  template <int SIZE>
  inline void below(uint32_t place, const words* asked, words* result) const {
    const words zero = {}, one = zero + seed[0], two = zero + seed[1];
    words undecided[SIZE], multiples[SIZE];
#define EACH _Pragma("GCC unroll 16") for (int t = 0; t < SIZE; t++)
    EACH undecided[t] = asked[t], result[t] = zero;
    EACH multiples[t] =
        (numbers_from(place + t * LANES) + uint32_t(digits - 1) * stride) * FIRST_FACTOR;
    const uint32_t step = stride * FIRST_FACTOR;
    for (int digit = digits - 1; digit >= 0; digit--) {
      const words set = zero - (threshold >> digit & 1);
      words drawn[SIZE];
      EACH drawn[t] = mix(multiples[t], one, two);
      EACH multiples[t] -= step;
      // A number whose digit is 0 is below if the threshold's is 1; one that differs is decided.
      EACH result[t] |= undecided[t] & drawn[t] & set;
      EACH undecided[t] &= drawn[t] ^ set;
      if (!any_bit(undecided, SIZE)) break;
    }
#undef EACH
  }
};

// Call visit(word, number of words, bits) for all words, a few vectors at a time.
//
// asked(word, number of words) returns the bits that are asked for.
template <int SIZE, typename Asked, typename Visit>
inline void draw_tile(const Numbers& numbers, long word, long width, const Asked& asked,
                      const Visit& visit) {
  words wanted[SIZE], found[SIZE];
  for (int t = 0; t < SIZE; t++) wanted[t] = asked(word + t * LANES);
  numbers.below<SIZE>(word, wanted, found);
  for (int t = 0; t < SIZE; t++) visit(word + t * LANES, found[t]);
}

template <typename Asked, typename Visit>
inline void draw(const Numbers& numbers, long width, const Asked& asked, const Visit& visit) {
  if (numbers.threshold == 0) {
    for (long word = 0; word < width; word += LANES) visit(word, words{});
    return;
  }
  long word = 0;
  for (; word + (TILE - 1) * LANES < width; word += TILE * LANES) {
    draw_tile<TILE>(numbers, word, width, asked, visit);
  }
  for (; word < width; word += LANES) draw_tile<1>(numbers, word, width, asked, visit);
}

inline words load_some(const uint32_t* from, long count) {
  words read = {};
  memcpy(&read, from, std::min<long>(count, LANES) * sizeof(uint32_t));
  return read;
}

inline void store_some(uint32_t* to, long count, words value) {
  memcpy(to, &value, std::min<long>(count, LANES) * sizeof(uint32_t));
}

// Draw independent bits, packed, that are 1 with probability threshold / 2^digits.
//
// seed [..., 2], threshold [...] -> bits [..., w], of which the first `count` may be 1.
ffi::Error bernoulli(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> seed,
                     ffi::Buffer<ffi::U32> threshold, ffi::ResultBuffer<ffi::U32> bits,
                     int64_t count, int64_t digits) {
  const long width = bits->dimensions().back(), rows = threshold.element_count();
  const uint32_t last = 0xFFFFFFFFu >> (-count & 31);
  in_parallel(pool, (rows + ROWS - 1) / ROWS, [&](long task) {
    for (long row = task * ROWS; row < std::min(rows, (task + 1) * ROWS); row++) {
      const Numbers numbers = {seed.typed_data() + 2 * row, threshold.typed_data()[row],
                               int(digits), uint32_t(width)};
      uint32_t* to = bits->typed_data() + row * width;
      const auto asked = [&](long word) {
        words wanted = {};
        wanted = ~wanted;
        if (word + LANES >= width) {
          for (long i = 0; i < LANES; i++) {
            if (word + i >= width - 1) wanted[i] = word + i == width - 1 ? last : 0;
          }
        }
        return wanted;
      };
      draw(numbers, width, asked, [&](long word, words found) {
        store_some(to + word, width - word, found);
      });
    }
  });
  return ffi::Error::Success();
}

// Sets -----------------------------------------------------------------------------------------

long num_bits(const uint32_t* from, long width) {
  long found = 0;
  for (long i = 0; i < width; i++) found += __builtin_popcount(from[i]);
  return found;
}

struct Symbols {
  long count, width;  // numbers of symbols and of words
  int digits;         // of a mask
  int shift;          // from a word to a symbol, or 32
};

// Add a mask of independent bits to a set, unless it would exceed `most`. Returns the set's size.
//
// float32 gives the digits that XLA has: the product is exact, and the rest is rounded once.
long add_mask(const Symbols& symbols, const uint32_t* seed, const uint32_t* free, long num_free,
              long most, long held, uint32_t* chosen, uint32_t* grown) {
  const float gap = float(most - held), room = float(std::max(num_free - held, 1L));
  const float share = std::max(gap - 2 * sqrtf(gap), 0.0f) / room;
  const float highest = float(1 << symbols.digits);
  const float threshold = std::min(ceilf(share * highest), highest - 1);
  const Numbers numbers = {seed, uint32_t(threshold), symbols.digits, uint32_t(symbols.width)};
  if (numbers.threshold == 0) return held;
  const auto asked = [&](long word) {
    const long rest = symbols.width - word;
    return rest > 0 ? load_some(free + word, rest) & ~load_some(chosen + word, rest) : words{};
  };
  draw(numbers, symbols.width, asked, [&](long word, words found) {
    const long rest = symbols.width - word;
    if (rest > 0) store_some(grown + word, rest, load_some(chosen + word, rest) | found);
  });
  const long count = num_bits(grown, symbols.width);
  if (count > most) return held;
  memcpy(chosen, grown, symbols.width * sizeof(uint32_t));
  return count;
}

// Add random symbols one by one until a set has `most`, but for those that cannot join.
void add_symbols(const Symbols& symbols, const uint32_t* seed, const uint32_t* free, long most,
                 long held, uint32_t* chosen) {
  const words zero = {}, one = zero + seed[0], two = zero + seed[1];
  for (uint32_t draws = 0; held < most; draws += LANES) {
    const words drawn = mix(numbers_from(draws) * FIRST_FACTOR, one, two);
    for (int i = 0; i < LANES && held < most; i++) {
      const uint32_t symbol = symbols.shift < 32 ? drawn[i] >> symbols.shift : 0;
      const long word = symbol / 32;
      const uint32_t bit = 1u << symbol % 32;
      if (word >= symbols.width || !(free[word] & ~chosen[word] & bit)) continue;
      chosen[word] |= bit;
      held++;
    }
  }
}

// Draw uniform sets of free symbols, packed, as `subset_selection.uniform_set` does.
//
// seeds [..., masks + 1, 2], free [..., w], size [...] -> sets [..., w]. The last seed is that of
// single symbols.
ffi::Error uniform_set(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> seeds,
                       ffi::Buffer<ffi::U32> free, ffi::Buffer<ffi::S32> size,
                       ffi::ResultBuffer<ffi::U32> sets, int64_t num_symbols, int64_t digits) {
  const auto shape = seeds.dimensions();
  const long num_seeds = shape[shape.size() - 2], rows = size.element_count();
  const long width = free.dimensions().back();
  int bits = 0;
  while ((num_symbols - 1) >> bits) bits++;
  const Symbols symbols = {num_symbols, width, int(digits), 32 - bits};
  in_parallel(pool, (rows + ROWS - 1) / ROWS, [&](long task) {
    std::vector<uint32_t> grown(width);
    for (long row = task * ROWS; row < std::min(rows, (task + 1) * ROWS); row++) {
      const uint32_t* seed = seeds.typed_data() + row * num_seeds * 2;
      const uint32_t* mine = free.typed_data() + row * width;
      uint32_t* chosen = sets->typed_data() + row * width;
      const long wanted = size.typed_data()[row], num_free = num_bits(mine, width);
      const long most = std::min(wanted, num_free - wanted);
      long held = 0;
      std::fill(chosen, chosen + width, 0);
      for (long i = 0; i < num_seeds - 1; i++) {
        held = add_mask(symbols, seed + 2 * i, mine, num_free, most, held, chosen, grown.data());
      }
      add_symbols(symbols, seed + 2 * (num_seeds - 1), mine, most, held, chosen);
      if (most < wanted) {  // the set is a complement
        for (long i = 0; i < width; i++) chosen[i] = mine[i] & ~chosen[i];
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

EXPORT XLA_FFI_Error* rknn_bernoulli(XLA_FFI_CallFrame*);
EXPORT XLA_FFI_Error* rknn_uniform_set(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(rknn_bernoulli, bernoulli,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("count")
                                  .Attr<int64_t>("digits"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(rknn_uniform_set, uniform_set,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("num_symbols")
                                  .Attr<int64_t>("digits"));
