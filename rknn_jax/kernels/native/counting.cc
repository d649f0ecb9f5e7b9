// Counts of messages that support each cell.

#include <algorithm>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "hashing.h"
#include "packed.h"
#include "parallel.h"

namespace {

// Hashed intervals -----------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int TILE = 16;  // vectors of cells, whose counts stay in registers
#else
constexpr int TILE = 4;
#endif
constexpr long AT_ONCE = 2048;  // messages, which fit the first cache

struct Messages {
  const uint32_t *seeds, *first, *width;
};

inline words with_less(words count, words x, words limit) {
#if defined(__AVX512F__)
  const __mmask16 less = _mm512_cmplt_epi32_mask((__m512i)x, (__m512i)limit);
  return (words)_mm512_mask_sub_epi32((__m512i)count, less, (__m512i)count, _mm512_set1_epi32(-1));
#else
  return count - (words)((ints)x < (ints)limit);
#endif
}

// Count messages in intervals. All that is compared is shifted by 2^31, to compare signed numbers.
//
// Intervals of whole multiples of 2^16 do not ask for a word's lower half, which the hash's last
// exclusive or changes.
template <int SIZE, bool WHOLE>
void count_tile(const Messages& messages, long begin, long end, long cell, int32_t* totals) {
  words multiples[SIZE], count[SIZE], x[SIZE];
  const words zero = {};
#define EACH _Pragma("GCC unroll 16") for (int t = 0; t < SIZE; t++)
  EACH multiples[t] = numbers_from(uint32_t(cell) + t * LANES) * FIRST_FACTOR;
  EACH count[t] = zero;
  for (long m = begin; m < end; m++) {
    const words one = zero + messages.seeds[2 * m], two = zero + messages.seeds[2 * m + 1];
    const words first = zero + (messages.first[m] + 0x80000000u);
    const words limit = zero + (messages.width[m] ^ 0x80000000u);
    // Steps in turn over the tile, so that the processor never waits for a product.
    EACH x[t] = multiples[t] + one, x[t] = (x[t] ^ x[t] >> 16) * 0x7FEB352Du;
    EACH x[t] = ((x[t] ^ x[t] >> 15) + two) * 0x846CA68Bu;
    EACH x[t] = (x[t] ^ x[t] >> 15) * 0xC2B2AE35u;
    EACH count[t] = with_less(count[t], (WHOLE ? x[t] : x[t] ^ x[t] >> 16) - first, limit);
  }
  EACH memcpy(totals + t * LANES, count + t, sizeof(words));
#undef EACH
}

template <bool WHOLE>
void count_block(const Messages& messages, long begin, long end, long cell, long size,
                 int32_t* totals) {
#if defined(__AVX512F__)
  if (size > 12) return count_tile<16, WHOLE>(messages, begin, end, cell, totals);
  if (size > 8) return count_tile<12, WHOLE>(messages, begin, end, cell, totals);
  if (size > 4) return count_tile<8, WHOLE>(messages, begin, end, cell, totals);
#endif
  count_tile<4, WHOLE>(messages, begin, end, cell, totals);
}

bool all_whole(const Messages& messages, long begin, long end) {
  uint32_t low = 0;
  for (long m = begin; m < end; m++) low |= messages.first[m] | messages.width[m];
  return (low & 0xFFFF) == 0;
}

long parts_of(long size, long part) { return (size + part - 1) / part; }

// Count, for each cell, the messages whose interval holds the cell's word.
//
// seeds [..., n, 2], first [..., n], width [..., n] -> totals [..., d].
ffi::Error count_in_intervals(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> seeds,
                              ffi::Buffer<ffi::U32> first, ffi::Buffer<ffi::U32> width,
                              ffi::ResultBuffer<ffi::S32> totals) {
  const long n = first.dimensions().back(), cells = totals->dimensions().back();
  const long tiles = parts_of(cells, TILE * LANES), blocks = parts_of(n, AT_ONCE);
  const long batch = cells ? totals->element_count() / cells : 0;
  int32_t* sums = totals->typed_data();
  std::fill(sums, sums + totals->element_count(), 0);
  in_parallel(pool, batch * tiles * blocks, [&](long task) {
    const long row = task / (tiles * blocks), block = task / tiles % blocks, tile = task % tiles;
    const Messages messages = {seeds.typed_data() + row * n * 2, first.typed_data() + row * n,
                               width.typed_data() + row * n};
    const long begin = block * AT_ONCE, end = std::min(n, begin + AT_ONCE);
    const long cell = tile * TILE * LANES, count = std::min<long>(cells - cell, TILE * LANES);
    int32_t found[TILE * LANES];
    const auto add = all_whole(messages, begin, end) ? count_block<true> : count_block<false>;
    add(messages, begin, end, cell, parts_of(count, LANES), found);
    for (long i = 0; i < count; i++) {
      __atomic_fetch_add(sums + row * cells + cell + i, found[i], __ATOMIC_RELAXED);
    }
  });
  return ffi::Error::Success();
}

// Packed bits ----------------------------------------------------------------------------------

constexpr int PLANES = 10;  // binary digits of a sum
constexpr long BITS_AT_ONCE = (1 << PLANES) - 1;

inline words majority(words a, words b, words c) { return (a & b) | (c & (a | b)); }

// Add 2^LEVEL messages to the lowest digits, and return what is carried to digit LEVEL.
template <int LEVEL, typename Read>
inline words add_tree(const Read& read, long m, words* digits) {
  if constexpr (LEVEL == 0) {
    return read(m);
  } else {
    const words a = add_tree<LEVEL - 1>(read, m, digits);
    const words b = add_tree<LEVEL - 1>(read, m + (1 << (LEVEL - 1)), digits);
    const words carried = majority(digits[LEVEL - 1], a, b);
    digits[LEVEL - 1] ^= a ^ b;
    return carried;
  }
}

// Add `count` messages to digits of sums, a vector of words wide.
template <typename Read>
void add_messages(const Read& read, long count, words* digits) {
  const auto carry = [&](words up, int digit) {
    for (; digit < PLANES; digit++) {
      const words both = digits[digit] & up;
      digits[digit] ^= up;
      up = both;
    }
  };
  long m = 0;
  for (; m + 16 <= count; m += 16) carry(add_tree<4>(read, m, digits), 4);
  for (; m < count; m++) carry(read(m), 0);
}

// Count the messages that have each bit.
//
// messages [..., n, w], packed -> totals [..., d], of the lowest d bits. Short messages lie side by
// side in a vector.
ffi::Error count_bits(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> messages,
                      ffi::ResultBuffer<ffi::S32> totals) {
  const auto shape = messages.dimensions();
  const long width = shape.back(), words_in_all = shape[shape.size() - 2] * width;
  const long cells = totals->dimensions().back();
  const long stride = std::max<long>(LANES / width, 1) * width;
  const long n = parts_of(words_in_all, stride);
  const long vectors = parts_of(stride, LANES), blocks = parts_of(n, BITS_AT_ONCE);
  const long batch = cells ? totals->element_count() / cells : 0;
  int32_t* sums = totals->typed_data();
  std::fill(sums, sums + totals->element_count(), 0);
  in_parallel(pool, batch * blocks * vectors, [&](long task) {
    const long row = task / (vectors * blocks), block = task / vectors % blocks;
    const long word = task % vectors * LANES, begin = block * BITS_AT_ONCE;
    const uint32_t* all = messages.typed_data() + row * words_in_all;
    words mine = {};
    for (long i = 0; i < std::min<long>(stride - word, LANES); i++) mine[i] = ~0u;
    const auto read = [&](long m) {
      const long at = (begin + m) * stride + word;
      return load_some(all + at, words_in_all - at) & mine;
    };
    words digits[PLANES] = {};
    add_messages(read, std::min(n - begin, BITS_AT_ONCE), digits);
    for (int bit = 0; bit < 32; bit++) {
      words found = {};
      for (int i = 0; i < PLANES; i++) found |= (digits[i] >> bit & 1) << i;
      for (long i = 0; i < std::min<long>(stride - word, LANES); i++) {
        const long cell = (word + i) % width * 32 + bit;
        if (cell >= cells) continue;
        __atomic_fetch_add(sums + row * cells + cell, int32_t(found[i]), __ATOMIC_RELAXED);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

EXPORT XLA_FFI_Error* rknn_count_in_intervals(XLA_FFI_CallFrame*);
EXPORT XLA_FFI_Error* rknn_count_bits(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(rknn_count_in_intervals, count_in_intervals,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(rknn_count_bits, count_bits,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
