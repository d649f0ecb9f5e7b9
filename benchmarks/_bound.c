// What a core can do at most: decoding hashed messages by hand, and vector integer operations as such.
//
// Of each message and cell: hash the cell under the message's seed (rknn_jax/hashing.py), and count it where the word lies in the message's
// interval. 16 operations: 3 multiplications, 4 shifts, 4 exclusive ors, 2 additions, 1 subtraction, 1 comparison, 1 masked addition; the
// hash's first multiplication depends on the cell alone. TILE vectors of cells and their counts stay in registers over all messages.

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#define COUNT(count, x, w) \
  count = (vec)_mm512_mask_add_epi32((__m512i)count, _mm512_cmplt_epu32_mask((__m512i)(x), (__m512i)(w)), (__m512i)count, _mm512_set1_epi32(1))
#else
#define LANES 8
#define COUNT(count, x, w) count -= (vec)((x) < (w))
#endif

typedef uint32_t vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef struct {
  const uint32_t *seeds, *first, *width;
  int32_t *totals;
  long begin, end, cells;
} job;

#define EACH_VECTOR _Pragma("GCC unroll 16") for (int t = 0; t < TILE; t++)

static void *decode_part(void *argument) {
  job *j = argument;
  for (long c = 0; c < j->cells; c += TILE * LANES) {
    uint32_t lanes[TILE * LANES];
    for (int i = 0; i < TILE * LANES; i++) lanes[i] = (uint32_t)(c + i) * 0x9E3779B1u;
    vec base[TILE], count[TILE], x[TILE], zero = {};
    EACH_VECTOR memcpy(base + t, lanes + t * LANES, sizeof(vec)), count[t] = zero;
    for (long m = j->begin; m < j->end; m++) {
      vec one = zero + j->seeds[2 * m], two = zero + j->seeds[2 * m + 1], first = zero + j->first[m], width = zero + j->width[m];
      EACH_VECTOR x[t] = base[t] + one, x[t] = (x[t] ^ x[t] >> 16) * 0x7FEB352Du;
      EACH_VECTOR x[t] = ((x[t] ^ x[t] >> 15) + two) * 0x846CA68Bu;
      EACH_VECTOR x[t] = (x[t] ^ x[t] >> 15) * 0xC2B2AE35u;
      EACH_VECTOR {
        x[t] = (x[t] ^ x[t] >> 16) - first;
        COUNT(count[t], x[t], width);
      }
    }
    EACH_VECTOR memcpy(lanes + t * LANES, count + t, sizeof(vec));
    for (int i = 0; i < TILE * LANES && c + i < j->cells; i++) j->totals[c + i] = lanes[i];
  }
  return 0;
}

// totals: [threads, cells]; the first row is the result.
void decode(const uint32_t *seeds, const uint32_t *first, const uint32_t *width, int32_t *totals, long messages, long cells, int threads) {
  pthread_t handles[threads];
  job jobs[threads];
  for (int i = 0; i < threads; i++) {
    jobs[i] = (job){seeds, first, width, totals + i * cells, messages * i / threads, messages * (i + 1) / threads, cells};
    if (i) pthread_create(handles + i, 0, decode_part, jobs + i);
  }
  decode_part(jobs);
  for (int i = 1; i < threads; i++) {
    pthread_join(handles[i], 0);
    for (long c = 0; c < cells; c++) totals[c] += totals[i * cells + c];
  }
}

// 12 chains of additions that do not wait for each other, on one core: returns how many additions of one lane were made.
long additions(long times, uint32_t *out) {
  vec x[12], sum = {};
  _Pragma("GCC unroll 12") for (int t = 0; t < 12; t++) x[t] = sum + (uint32_t)t;
  for (long i = 0; i < times; i++) {
    _Pragma("GCC unroll 12") for (int t = 0; t < 12; t++) {
      x[t] += x[t];
      __asm__("" : "+v"(x[t]));
    }
  }
  _Pragma("GCC unroll 12") for (int t = 0; t < 12; t++) sum += x[t];
  memcpy(out, &sum, 4);
  return 12 * LANES * times;
}
