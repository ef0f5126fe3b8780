/* CRC-32C, the checksum of batches and object files, without the interpreter lock.
 *
 * Where the processor has an instruction for it, that is used: eight bytes a step, in three lanes, because a step has
 * to wait for the one before it in its lane but not for those of the others. The lanes are put together by moving a
 * register over as many zeros as a lane is long, which is linear, so four look-ups do it. Lanes are long, because the
 * processor reads ahead in each of them and needs some way to begin, and short for what is left. Anywhere else eight
 * tables take eight bytes a step. The instruction is written as assembly: nothing is asked of the compiler's flags, and it
 * runs only where the processor said that it has it. */
#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

enum { STEP_BYTES = 8, LONG_LANE_BYTES = 4096, SHORT_LANE_BYTES = 256, REVERSED_POLYNOMIAL = 0x82f63b78 };

typedef uint32_t lane_tables[4][256]; /* of a register's byte with a lane of zeros behind it */

static bool has_instruction;
static uint32_t tables[STEP_BYTES][256]; /* of a byte with 0 to 7 zero bytes behind it */
static lane_tables over_long, over_short;

static inline uint64_t load_step(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
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
    return true; /* every 64-bit processor of theirs that runs Python */
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

/* Sums as many bytes as three lanes at a time take; returns how many. */
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
            /* Moving is linear: a byte goes where its bits go. */
            tables_of_lane[place][byte] =
                rest == 0 ? sum_by_tables(byte << (8 * place), zeros, lane_bytes)
                          : tables_of_lane[place][bit] ^ tables_of_lane[place][rest];
        }
}

void kernel_crc32c_begin(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? REVERSED_POLYNOMIAL : 0);
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
#endif
}

uint32_t kernel_crc32c_by_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~sum_by_tables(~crc, data, size);
}

uint32_t kernel_crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
#if HAS_STEP
    if (has_instruction)
        return ~sum_by_steps(~crc, data, size);
#endif
    return kernel_crc32c_by_tables(crc, data, size);
}
