/* CRC-32C, the checksum of batches and object files, without the interpreter lock.
 *
 * A processor with an instruction for it takes eight bytes a step, in three lanes: a step waits for the one before it in
 * its lane, but not for those of the other lanes. To join the lanes, a register moves over as many zeros as a lane is
 * long; that is linear, so four look-ups do it. Lanes are long, because the processor reads ahead in each of them and
 * needs some distance to begin; short lanes take the rest. Some processors also multiply polynomials, two pairs at once,
 * in other units: these fold half of each block while the lanes take the other half. The pieces are too short for the
 * processor's own reading ahead, so the code prefetches the next block, which is twice as fast if the bytes are not in
 * the cache. Other processors use eight tables, eight bytes a step. The instruction is written as assembly, and the
 * folding names the features that it needs: no compiler flag is necessary, and each runs only on a processor that
 * reports the feature. */
#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

enum { STEP_BYTES = 8, LONG_LANE_BYTES = 4096, SHORT_LANE_BYTES = 256, REVERSED_POLYNOMIAL = 0x82f63b78 };

/* The register of a polynomial that is 1: the powers of x go from the highest bit down. */
static const uint32_t ONE = UINT32_C(1) << 31;

typedef uint32_t lane_tables[4][256]; /* of a register's byte followed by a lane of zeros */

/* The squares of x, from x^8 on: the powers that move a register over 1, 2, 4 ... bytes. */
enum { POWERS_COUNT = 8 * sizeof(size_t) };
static uint32_t powers[POWERS_COUNT];

static bool has_instruction;
static uint32_t tables[STEP_BYTES][256]; /* of a byte followed by 0 to 7 zero bytes */
static lane_tables over_long, over_short;

static inline uint64_t load_step(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static inline uint32_t times_x(uint32_t state)
{
    return state >> 1 ^ (state & 1 ? REVERSED_POLYNOMIAL : 0);
}

/* The register after `size` more bytes, by tables. */
static uint32_t sum_by_tables(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= STEP_BYTES; size -= STEP_BYTES, data += STEP_BYTES) {
        uint64_t word = load_step(data) ^ state;
        state = 0;
        for (int index = 0; index < STEP_BYTES; index++)
            state ^= tables[STEP_BYTES - 1 - index][word >> (8 * index) & 0xff];
    }
    for (; size > 0; size--)
        state = tables[0][(state ^ *data++) & 0xff] ^ state >> 8;
    return state;
}

#if defined(__x86_64__)
#define HAS_STEP 1

static bool processor_can(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}

static inline uint64_t step(uint64_t state, uint64_t word)
{
    __asm__("crc32q %1, %0" : "+r"(state) : "rm"(word));
    return state;
}

static inline uint64_t step_byte(uint64_t state, uint8_t byte)
{
    uint32_t half = (uint32_t)state;
    __asm__("crc32b %1, %0" : "+r"(half) : "rm"(byte));
    return half;
}

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#define HAS_STEP 1

static bool processor_can(void)
{
#if defined(__APPLE__)
    return true; /* every 64-bit Apple processor that runs Python */
#else
    return getauxval(AT_HWCAP) >> 7 & 1; /* HWCAP_CRC32 */
#endif
}

static inline uint64_t step(uint64_t state, uint64_t word)
{
    uint32_t half = (uint32_t)state;
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(half) : "r"(word));
    return half;
}

static inline uint64_t step_byte(uint64_t state, uint8_t byte)
{
    uint32_t half = (uint32_t)state, wide = byte;
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(half) : "r"(wide));
    return half;
}

#else
#define HAS_STEP 0
#endif

#if HAS_STEP

static inline uint64_t over_a_lane(lane_tables tables_of_lane, uint64_t state)
{
    return tables_of_lane[0][state & 0xff] ^ tables_of_lane[1][state >> 8 & 0xff] ^
           tables_of_lane[2][state >> 16 & 0xff] ^ tables_of_lane[3][state >> 24 & 0xff];
}

/* Sums the bytes that fill three lanes, as often as they do; returns the number of bytes. */
static inline size_t sum_in_lanes(uint64_t *state, const uint8_t *data, size_t size, size_t lane_bytes,
                                  lane_tables tables_of_lane)
{
    size_t position = 0;
    for (; size - position >= 3 * lane_bytes; position += 3 * lane_bytes) {
        const uint8_t *lanes = data + position;
        uint64_t first = *state, second = 0, third = 0;
        for (size_t index = 0; index < lane_bytes; index += STEP_BYTES) {
            first = step(first, load_step(lanes + index));
            second = step(second, load_step(lanes + lane_bytes + index));
            third = step(third, load_step(lanes + 2 * lane_bytes + index));
        }
        *state = over_a_lane(tables_of_lane, over_a_lane(tables_of_lane, first) ^ second) ^ third;
    }
    return position;
}

#if defined(__x86_64__)

/* A block takes eight turns. In each, 128 bytes are folded and each of three lanes goes five steps, which takes about as
 * long. The folded part comes first, the lanes follow. */
enum {
    FOLD_BYTES = 128,
    TURNS = 8,
    TURN_STEPS = 5,
    FOLDED_LANE_BYTES = TURNS * TURN_STEPS * STEP_BYTES,
    BLOCK_BYTES = TURNS * FOLD_BYTES + 3 * FOLDED_LANE_BYTES,
    LINE_BYTES = 64,
};

/* The factors that move the two halves of sixteen bytes a number of bytes further on. */
typedef struct {
    uint64_t halves[2];
} fold_factors;

static bool can_fold;
static lane_tables over_folded_lane, over_block;
static fold_factors over_turn, over_word, over_half_word;

static bool processor_can_fold(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}

/* A product of reversed polynomials lacks one x; the powers here add it. */
static fold_factors factors_over(unsigned bytes)
{
    fold_factors factors;
    uint32_t power = ONE;
    for (unsigned exponent = 0; exponent <= 8 * bytes + 63; exponent++, power = times_x(power)) {
        if (exponent == 8 * bytes - 1)
            factors.halves[1] = (uint64_t)power << 32;
        if (exponent == 8 * bytes + 63)
            factors.halves[0] = (uint64_t)power << 32;
    }
    return factors;
}

#define FOLDING __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))

FOLDING static inline __m128i load_factors(const fold_factors *factors)
{
    return _mm_loadu_si128((const __m128i *)factors->halves);
}

FOLDING static inline __m256i load_word(const uint8_t *data)
{
    return _mm256_loadu_si256((const __m256i *)data);
}

/* Moves `word` by the factors, and adds it to `there`. */
FOLDING static inline __m256i fold(__m256i word, __m256i factors, __m256i there)
{
    const __m256i first = _mm256_clmulepi64_epi128(word, factors, 0x00);
    const __m256i second = _mm256_clmulepi64_epi128(word, factors, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, second), there);
}

/* The register after the four words of a turn, into which all earlier words were folded. */
FOLDING static inline uint64_t sum_of_words(const __m256i words[4])
{
    const __m256i factors = _mm256_broadcastsi128_si256(load_factors(&over_word));
    const __m256i last = fold(fold(fold(words[0], factors, words[1]), factors, words[2]), factors, words[3]);
    const __m256i ends = fold(last, _mm256_castsi128_si256(load_factors(&over_half_word)),
                              _mm256_castsi128_si256(_mm256_extracti128_si256(last, 1)));
    const __m128i end = _mm256_castsi256_si128(ends);
    return step(step(0, (uint64_t)_mm_cvtsi128_si64(end)), (uint64_t)_mm_extract_epi64(end, 1));
}

/* The register after one block, begun at 0, so that a block does not wait for the one before it. */
FOLDING static inline uint64_t sum_of_block(const uint8_t *block)
{
    const __m256i factors = _mm256_broadcastsi128_si256(load_factors(&over_turn));
    const uint8_t *lanes = block + TURNS * FOLD_BYTES;
    const uintptr_t next_block = (uintptr_t)block + BLOCK_BYTES;
    uint64_t first = 0, second = 0, third = 0, state;
    __m256i words[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                        _mm256_setzero_si256()};
    for (int turn = 0; turn < TURNS; turn++, block += FOLD_BYTES) {
        for (int index = 0; index < 4; index++)
            _mm_prefetch((const char *)(next_block + LINE_BYTES * (uintptr_t)(4 * turn + index)), _MM_HINT_T0);
        for (int index = 0; index < 4; index++)
            words[index] = fold(words[index], factors, load_word(block + 32 * index));
        for (int index = 0; index < TURN_STEPS; index++, lanes += STEP_BYTES) {
            first = step(first, load_step(lanes));
            second = step(second, load_step(lanes + FOLDED_LANE_BYTES));
            third = step(third, load_step(lanes + 2 * FOLDED_LANE_BYTES));
        }
    }
    state = over_a_lane(over_folded_lane, sum_of_words(words)) ^ first;
    state = over_a_lane(over_folded_lane, state) ^ second;
    return over_a_lane(over_folded_lane, state) ^ third;
}

/* Sums the bytes of whole blocks; returns their number. */
FOLDING static size_t sum_in_blocks(uint64_t *state, const uint8_t *data, size_t size)
{
    size_t position = 0;
    for (; size - position >= BLOCK_BYTES; position += BLOCK_BYTES)
        *state = over_a_lane(over_block, *state) ^ sum_of_block(data + position);
    return position;
}

#endif

static uint32_t sum_by_steps(uint32_t begin, const uint8_t *data, size_t size)
{
    uint64_t state = begin;
    size_t summed = sum_in_lanes(&state, data, size, LONG_LANE_BYTES, over_long);
    summed += sum_in_lanes(&state, data + summed, size - summed, SHORT_LANE_BYTES, over_short);
    data += summed;
    size -= summed;
    for (; size >= STEP_BYTES; size -= STEP_BYTES, data += STEP_BYTES)
        state = step(state, load_step(data));
    for (; size > 0; size--)
        state = step_byte(state, *data++);
    return (uint32_t)state;
}

#endif

static void begin_lane(lane_tables tables_of_lane, size_t lane_bytes)
{
    static const uint8_t zeros[LONG_LANE_BYTES];
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 1; byte < 256; byte++) {
            uint32_t bit = byte & -byte, rest = byte ^ bit;
            /* Moving is linear: a byte moves as its bits do. */
            tables_of_lane[place][byte] =
                rest == 0 ? sum_by_tables(byte << (8 * place), zeros, lane_bytes)
                          : tables_of_lane[place][bit] ^ tables_of_lane[place][rest];
        }
}

static uint32_t product(uint32_t factor, uint32_t other)
{
    uint32_t sum = 0;
    for (; factor != 0; factor <<= 1, other = times_x(other))
        if (factor & ONE)
            sum ^= other;
    return sum;
}

static void begin_powers(void)
{
    uint32_t power = ONE >> 8;
    for (int index = 0; index < POWERS_COUNT; index++, power = product(power, power))
        powers[index] = power;
}

void kernel_crc32c_begin(void)
{
    begin_powers();
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = times_x(state);
        tables[0][byte] = state;
    }
    for (int zeros_count = 1; zeros_count < STEP_BYTES; zeros_count++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t state = tables[zeros_count - 1][byte];
            tables[zeros_count][byte] = tables[0][state & 0xff] ^ state >> 8;
        }
    begin_lane(over_long, LONG_LANE_BYTES);
    begin_lane(over_short, SHORT_LANE_BYTES);
#if HAS_STEP
    has_instruction = processor_can();
#if defined(__x86_64__)
    begin_lane(over_folded_lane, FOLDED_LANE_BYTES);
    begin_lane(over_block, BLOCK_BYTES);
    over_turn = factors_over(FOLD_BYTES);
    over_word = factors_over(32);
    over_half_word = factors_over(16);
    can_fold = has_instruction && processor_can_fold();
#endif
#endif
}

uint32_t kernel_crc32c_by_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~sum_by_tables(~crc, data, size);
}

uint32_t kernel_crc32c_by_lanes(uint32_t crc, const uint8_t *data, size_t size)
{
#if HAS_STEP
    if (has_instruction)
        return ~sum_by_steps(~crc, data, size);
#endif
    return kernel_crc32c_by_tables(crc, data, size);
}

uint32_t kernel_crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
#if defined(__x86_64__)
    if (can_fold) {
        uint64_t state = ~crc;
        size_t summed = sum_in_blocks(&state, data, size);
        return ~sum_by_steps((uint32_t)state, data + summed, size - summed);
    }
#endif
    return kernel_crc32c_by_lanes(crc, data, size);
}

/* The inversions at both ends of a sum cancel out. */
uint32_t kernel_joined_crc(uint32_t crc, uint32_t next_crc, size_t next_size)
{
    for (int index = 0; next_size > 0; index++, next_size >>= 1)
        if (next_size & 1)
            crc = product(powers[index], crc);
    return crc ^ next_crc;
}
