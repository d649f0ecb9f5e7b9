// Random bits and random sets, packed: the bits that XLA's forms draw from the same seeds.

#include <math.h>

#include <algorithm>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "hashing.h"
#include "packed.h"
#include "parallel.h"

namespace {

constexpr long ROWS = 64;   // clients of a task
constexpr long GROUP = 4;   // clients that take turns
constexpr long CHUNK = 512;  // words that are compared at once
constexpr int TILE = 10;    // vectors of words in registers
constexpr int EARLY = 9;    // digits that all numbers draw

#if defined(__AVX512F__)
inline bool any_bit(words x) {
  return bits_of(_mm512_test_epi32_mask((__m512i)x, (__m512i)x)) != 0;
}
#else
inline bool any_bit(words x) {
  uint64_t parts[LANES / 2], found = 0;
  memcpy(parts, &x, sizeof(x));
  for (int i = 0; i < LANES / 2; i++) found |= parts[i];
  return found;
}
#endif

// Words of a chunk, of which some numbers are not decided yet.
struct Undecided {
  long count = 0;
  uint32_t places[CHUNK + LANES];  // in the chunk
  uint32_t bits[CHUNK + TILE * LANES];

  inline void append(long place, words found) {
    *reinterpret_cast<words*>(bits + place) = found;
#if defined(__AVX512F__)
    const __mmask16 some = _mm512_test_epi32_mask((__m512i)found, (__m512i)found);
    const __m512i all = (__m512i)numbers_from(place);
    // Some processors compress slowly into memory, so this goes by a register.
    _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(some, all));
    count += __builtin_popcount(bits_of(some));
#else
    for (int i = 0; i < LANES; i++) {
      places[count] = place + i;
      count += found[i] != 0;
    }
#endif
  }

  // Return the bits of a vector of places.
  inline words at(words place) const {
#if defined(__AVX512F__)
    return (words)_mm512_i32gather_epi32((__m512i)place, bits, 4);
#else
    words found;
    for (int i = 0; i < LANES; i++) found[i] = bits[place[i]];
    return found;
#endif
  }
};

// A comparison of random numbers, of `digits` binary digits, with a threshold.
//
// A word of digit j, of 32 numbers and complemented, is the hash of its place + j·stride. Numbers
// are compared from the first digit on, and a digit decides half of them. So only the first few
// digits are drawn for all numbers, and the others for the few words that they may change.
struct Numbers {
  const uint32_t* seed;
  uint32_t threshold;
  int digits;
  uint32_t stride;

  inline words multiples(words place, int digit) const {
    return (place + uint32_t(digit) * stride) * FIRST_FACTOR;
  }

  // A number whose digit is 0 is below if the threshold's is 1; one that differs is decided.
  inline void compare(int digit, words drawn, words& undecided, words& result) const {
    const words set = words{} - (threshold >> digit & 1);
    result |= undecided & drawn & set;
    undecided &= drawn ^ set;
  }

  // Compare the first digits of a tile of a chunk.
  template <int SIZE, typename Asked>
  inline void begin(long chunk, long word, long width, const Asked& asked, uint32_t* to,
                    Undecided& rest) const {
#define EACH _Pragma("GCC unroll 16") for (int t = 0; t < SIZE; t++)
    const words zero = {}, two = zero + seed[1];
    words undecided[SIZE], result[SIZE], x[SIZE];
    EACH undecided[t] = asked(word + t * LANES), result[t] = zero;
    words first = multiples(numbers_from(word), digits - 1) + seed[0];
    const int last = std::max(0, digits - EARLY);
    for (int digit = digits - 1; digit >= last; digit--) {
      // Steps of `mix` in turn over the tile, so that the processor never waits for a product.
      EACH x[t] = first + t * LANES * FIRST_FACTOR, x[t] = (x[t] ^ x[t] >> 16) * 0x7FEB352Du;
      EACH x[t] = ((x[t] ^ x[t] >> 15) + two) * 0x846CA68Bu;
      EACH x[t] = (x[t] ^ x[t] >> 15) * 0xC2B2AE35u;
      EACH compare(digit, x[t] ^ x[t] >> 16, undecided[t], result[t]);
      first -= stride * FIRST_FACTOR;
    }
    EACH store_some(to + word + t * LANES, width - word - t * LANES, result[t]);
    EACH rest.append(word - chunk + t * LANES, undecided[t]);
#undef EACH
  }

  // Compare the other digits of the words of a chunk that have undecided numbers.
  inline void finish(long chunk, Undecided& rest, uint32_t* to) const {
    const words zero = {}, one = zero + seed[0], two = zero + seed[1];
    for (long i = 0; i < rest.count; i += LANES) {
      const words place = load_some(rest.places + i, rest.count - i);
      words undecided = rest.at(place), result = zero;
      for (int digit = digits - EARLY - 1; digit >= 0;) {
        // To leave the loop early is worth a wrong guess of the processor only once in a while.
        const int last = std::max(0, digit - 7);
        for (; digit >= last; digit--) {
          const words drawn = mix(multiples(place + uint32_t(chunk), digit), one, two);
          compare(digit, drawn, undecided, result);
        }
        if (!any_bit(undecided)) break;
      }
      uint32_t found[LANES];
      memcpy(found, &result, sizeof(found));
      const long some = std::min<long>(rest.count - i, LANES);
      for (long j = 0; j < some; j++) to[chunk + rest.places[i + j]] |= found[j];
    }
  }
};

// Write, for each of some clients, the bits of numbers below the threshold that are asked for.
//
// asked(client, word) returns a vector of bits, 0 beyond the width. The clients take turns, so that
// no one reads what it has just written, for which a processor would wait.
template <typename Asked>
void draw(const Numbers* numbers, long clients, long width, const Asked& asked,
          uint32_t* const* to) {
  Undecided rest[GROUP];
  for (long chunk = 0; chunk < width; chunk += CHUNK) {
    const long end = std::min(width, chunk + CHUNK);
    for (long i = 0; i < clients; i++) {
      const auto mine = [&](long word) { return asked(i, word); };
      rest[i].count = 0;
      for (long word = chunk, size; word < end; word += size * LANES) {
        const long vectors = (end - word + LANES - 1) / LANES;
        size = vectors >= TILE ? TILE : vectors >= 4 ? 4 : 1;
        if (size == TILE) numbers[i].begin<TILE>(chunk, word, width, mine, to[i], rest[i]);
        if (size == 4) numbers[i].begin<4>(chunk, word, width, mine, to[i], rest[i]);
        if (size == 1) numbers[i].begin<1>(chunk, word, width, mine, to[i], rest[i]);
      }
    }
    for (long i = 0; i < clients; i++) numbers[i].finish(chunk, rest[i], to[i]);
  }
}

// Call visit(first row, number of rows) for each group of a task.
template <typename Visit>
void in_groups(long task, long rows, const Visit& visit) {
  const long end = std::min(rows, (task + 1) * ROWS);
  for (long row = task * ROWS; row < end; row += GROUP) visit(row, std::min(GROUP, end - row));
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
    in_groups(task, rows, [&](long row, long clients) {
      Numbers numbers[GROUP];
      uint32_t* to[GROUP];
      for (long i = 0; i < clients; i++) {
        numbers[i] = {seed.typed_data() + 2 * (row + i), threshold.typed_data()[row + i],
                      int(digits), uint32_t(width)};
        to[i] = bits->typed_data() + (row + i) * width;
      }
      const auto asked = [&](long, long word) {
        words wanted = ~words{};
        for (long i = std::max(0L, width - 1 - word); i < LANES; i++) {
          wanted[i] = word + i == width - 1 ? last : 0;
        }
        return wanted;
      };
      draw(numbers, clients, width, asked, to);
    });
  });
  return ffi::Error::Success();
}

// Sets -----------------------------------------------------------------------------------------

long num_bits(const uint32_t* from, long width) {
  long found = 0, i = 0;
  for (; i + 2 <= width; i += 2) {
    uint64_t two;
    memcpy(&two, from + i, sizeof(two));
    found += __builtin_popcountll(two);
  }
  return i < width ? found + __builtin_popcount(from[i]) : found;
}

// A set that grows: `open` are the free symbols that are not in it.
struct Growing {
  long num_free, most, held;
  std::vector<uint32_t> open, mask;

  // Return the threshold of a mask of independent bits.
  //
  // float32 gives the threshold that XLA has: products with powers of two are exact.
  uint32_t threshold(int digits) const {
    const float gap = float(most - held), room = float(std::max(num_free - held, 1L));
    const float share = std::max(gap - 2 * sqrtf(gap), 0.0f) / room;
    const float highest = float(1 << digits);
    return uint32_t(std::min(ceilf(share * highest), highest - 1));
  }

  // Add the mask, unless the set would exceed `most`.
  void add_mask(long width) {
    const long count = num_bits(mask.data(), width);
    if (held + count > most) return;
    held += count;
    for (long i = 0; i < width; i++) open[i] &= ~mask[i];
  }

  // Add random symbols one by one, but for those that are not open.
  void add_symbols(const uint32_t* seed, int shift) {
    const words zero = {}, one = zero + seed[0], two = zero + seed[1];
    for (uint32_t draws = 0; held < most; draws += LANES) {
      const words drawn = mix(numbers_from(draws) * FIRST_FACTOR, one, two) >> shift;
      for (int i = 0; i < LANES; i++) {
        const uint32_t symbol = drawn[i];
        const uint32_t joins = open[symbol / 32] >> symbol % 32 & (held < most);
        open[symbol / 32] ^= joins << symbol % 32;
        held += joins;
      }
    }
  }
};

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
  in_parallel(pool, (rows + ROWS - 1) / ROWS, [&](long task) {
    Growing growing[GROUP];
    Numbers numbers[GROUP];
    uint32_t* masks[GROUP];
    for (long i = 0; i < GROUP; i++) {
      // Symbols are numbers below 2^bits. Those that do not exist are never open.
      growing[i].open.resize(std::max(width, (1L << bits) / 32 + 1));
      growing[i].mask.resize(width);
      masks[i] = growing[i].mask.data();
    }
    in_groups(task, rows, [&](long row, long clients) {
      for (long i = 0; i < clients; i++) {
        const uint32_t* mine = free.typed_data() + (row + i) * width;
        const long wanted = size.typed_data()[row + i], num_free = num_bits(mine, width);
        growing[i].num_free = num_free;
        growing[i].most = std::min(wanted, num_free - wanted);
        growing[i].held = 0;
        std::copy(mine, mine + width, growing[i].open.begin());
      }
      const auto seed_of = [&](long i, long n) {
        return seeds.typed_data() + ((row + i) * num_seeds + n) * 2;
      };
      const auto asked = [&](long i, long word) {
        return load_some(growing[i].open.data() + word, width - word);
      };
      for (long n = 0; n < num_seeds - 1; n++) {
        for (long i = 0; i < clients; i++) {
          const uint32_t threshold = growing[i].threshold(digits);
          numbers[i] = {seed_of(i, n), threshold, int(digits), uint32_t(width)};
        }
        draw(numbers, clients, width, asked, masks);
        for (long i = 0; i < clients; i++) growing[i].add_mask(width);
      }
      for (long i = 0; i < clients; i++) {
        growing[i].add_symbols(seed_of(i, num_seeds - 1), 32 - bits);
        const uint32_t* mine = free.typed_data() + (row + i) * width;
        uint32_t* set = sets->typed_data() + (row + i) * width;
        // A large set is the complement of a small one.
        const uint32_t flip = growing[i].most < size.typed_data()[row + i] ? 0 : ~0u;
        for (long j = 0; j < width; j++) set[j] = mine[j] & (growing[i].open[j] ^ flip);
      }
    });
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
