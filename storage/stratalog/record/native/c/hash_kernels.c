/* Hashes of keys: SipHash-2-4 with a 128-bit result for key streams, murmur2 for partitions, words that are multiplied
 * for the columns of tables.
 *
 * A hash is a chain of steps that wait for each other. A processor that works on four words at once hashes eight keys
 * side by side: four in a register, and two registers in turns. The keys must have the same number of whole words; keys
 * of a topic mostly do. */
#include "kernels.h"
#include "key_column_hashes.h"
#include "record_frame.h"
#include "versions.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct {
    uint64_t v0, v1, v2, v3;
} sip_state;

static inline uint64_t rotate_left(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static inline void sip_round(sip_state *state)
{
    state->v0 += state->v1;
    state->v1 = rotate_left(state->v1, 13) ^ state->v0;
    state->v0 = rotate_left(state->v0, 32);
    state->v2 += state->v3;
    state->v3 = rotate_left(state->v3, 16) ^ state->v2;
    state->v0 += state->v3;
    state->v3 = rotate_left(state->v3, 21) ^ state->v0;
    state->v2 += state->v1;
    state->v1 = rotate_left(state->v1, 17) ^ state->v2;
    state->v2 = rotate_left(state->v2, 32);
}

static inline void sip_absorb(sip_state *state, uint64_t word)
{
    state->v3 ^= word;
    sip_round(state);
    sip_round(state);
    state->v0 ^= word;
}

static inline uint64_t sip_finish(sip_state *state)
{
    for (int round = 0; round < 4; round++)
        sip_round(state);
    return state->v0 ^ state->v1 ^ state->v2 ^ state->v3;
}

static inline sip_state sip_begin(const uint8_t *key16)
{
    uint64_t k0, k1;
    memcpy(&k0, key16, sizeof k0);
    memcpy(&k1, key16 + sizeof k0, sizeof k1);
    return (sip_state){
        k0 ^ 0x736f6d6570736575u,
        k1 ^ 0x646f72616e646f6du ^ 0xee,
        k0 ^ 0x6c7967656e657261u,
        k1 ^ 0x7465646279746573u,
    };
}

static inline void sip_hash(sip_state state, const uint8_t *data, size_t size, uint64_t *high, uint64_t *low)
{
    uint64_t word, last = (uint64_t)size << 56;
    size_t left = size;
    for (; left >= sizeof word; left -= sizeof word, data += sizeof word) {
        memcpy(&word, data, sizeof word);
        sip_absorb(&state, word);
    }
    for (size_t index = 0; index < left; index++)
        last |= (uint64_t)data[index] << (8 * index);
    sip_absorb(&state, last);
    state.v2 ^= 0xee;
    *high = sip_finish(&state);
    state.v1 ^= 0xdd;
    *low = sip_finish(&state);
}

void kernel_siphash128(const uint8_t *key16, const uint8_t *data, size_t size, uint64_t *high, uint64_t *low)
{
    sip_hash(sip_begin(key16), data, size, high, low);
}

/* Keys that wait to be hashed together, and the columns that get the hashes. */
enum { LANES = 8, VECTOR_LANES = 4 };

typedef struct {
    const uint8_t *data[LANES];
    size_t size[LANES];
    size_t count;
    uint64_t *high;
    uint64_t *low;
} waiting_keys;

#if defined(__x86_64__)
#define HAS_LANES 1

static bool processor_has_lanes(void)
{
    return __builtin_cpu_supports("avx2");
}

typedef uint64_t words __attribute__((vector_size(VECTOR_LANES * sizeof(uint64_t))));

typedef struct {
    words v0, v1, v2, v3;
} sip_lanes;

/* A whole word of a key. */
static inline uint64_t word_at(const uint8_t *data, size_t index)
{
    uint64_t word;
    memcpy(&word, data + index * sizeof word, sizeof word);
    return word;
}

/* The last word of a key: its bytes after the whole words, and its size. */
static inline uint64_t last_word(const uint8_t *data, size_t size)
{
    const size_t left = size % sizeof(uint64_t);
    uint64_t word = 0;
    if (size >= sizeof word) {
        memcpy(&word, data + size - sizeof word, sizeof word);
        /* In two steps, because no byte may be left. */
        word = word >> 8 >> (56 - 8 * left);
    } else {
        for (size_t index = 0; index < left; index++)
            word |= (uint64_t)data[index] << (8 * index);
    }
    return word | (uint64_t)size << 56;
}

#define LANE_KERNEL __attribute__((target("avx2")))
#define ROTATE_LEFT(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

/* Whole bytes move in one step. */
LANE_KERNEL static inline words rotate_left_16(words word)
{
    const __m256i from = _mm256_set_epi8(13, 12, 11, 10, 9, 8, 15, 14, 5, 4, 3, 2, 1, 0, 7, 6, 13, 12, 11, 10, 9, 8,
                                         15, 14, 5, 4, 3, 2, 1, 0, 7, 6);
    return (words)_mm256_shuffle_epi8((__m256i)word, from);
}

LANE_KERNEL static inline words rotate_left_32(words word)
{
    return (words)_mm256_shuffle_epi32((__m256i)word, _MM_SHUFFLE(2, 3, 0, 1));
}

/* One round of both states. They do not wait for each other, which is why there are two. */
LANE_KERNEL static inline void sip_round_lanes(sip_lanes states[2])
{
    for (int half = 0; half < 2; half++) {
        sip_lanes *state = &states[half];
        state->v0 += state->v1;
        state->v1 = ROTATE_LEFT(state->v1, 13) ^ state->v0;
        state->v0 = rotate_left_32(state->v0);
        state->v2 += state->v3;
        state->v3 = rotate_left_16(state->v3) ^ state->v2;
        state->v0 += state->v3;
        state->v3 = ROTATE_LEFT(state->v3, 21) ^ state->v0;
        state->v2 += state->v1;
        state->v1 = ROTATE_LEFT(state->v1, 17) ^ state->v2;
        state->v2 = rotate_left_32(state->v2);
    }
}

LANE_KERNEL static inline void sip_absorb_lanes(sip_lanes states[2], words first, words second)
{
    states[0].v3 ^= first;
    states[1].v3 ^= second;
    sip_round_lanes(states);
    sip_round_lanes(states);
    states[0].v0 ^= first;
    states[1].v0 ^= second;
}

LANE_KERNEL static inline void sip_finish_lanes(sip_lanes states[2], uint64_t *target)
{
    for (int round = 0; round < 4; round++)
        sip_round_lanes(states);
    for (int half = 0; half < 2; half++) {
        words result = states[half].v0 ^ states[half].v1 ^ states[half].v2 ^ states[half].v3;
        memcpy(target + half * VECTOR_LANES, &result, sizeof result);
    }
}

/* Hashes LANES keys with as many whole words. */
LANE_KERNEL static void hash_lanes(const sip_state *keyed, const waiting_keys *keys, uint64_t high[LANES],
                                   uint64_t low[LANES])
{
    const uint8_t *const *data = keys->data;
    const size_t *size = keys->size, words_count = size[0] / sizeof(uint64_t);
    const sip_lanes begin = {
        {keyed->v0, keyed->v0, keyed->v0, keyed->v0},
        {keyed->v1, keyed->v1, keyed->v1, keyed->v1},
        {keyed->v2, keyed->v2, keyed->v2, keyed->v2},
        {keyed->v3, keyed->v3, keyed->v3, keyed->v3},
    };
    sip_lanes states[2] = {begin, begin};
    for (size_t index = 0; index < words_count; index++)
        sip_absorb_lanes(states,
                         (words){word_at(data[0], index), word_at(data[1], index), word_at(data[2], index),
                                 word_at(data[3], index)},
                         (words){word_at(data[4], index), word_at(data[5], index), word_at(data[6], index),
                                 word_at(data[7], index)});
    sip_absorb_lanes(states,
                     (words){last_word(data[0], size[0]), last_word(data[1], size[1]), last_word(data[2], size[2]),
                             last_word(data[3], size[3])},
                     (words){last_word(data[4], size[4]), last_word(data[5], size[5]), last_word(data[6], size[6]),
                             last_word(data[7], size[7])});
    for (int half = 0; half < 2; half++)
        states[half].v2 ^= (words){0xee, 0xee, 0xee, 0xee};
    sip_finish_lanes(states, high);
    for (int half = 0; half < 2; half++)
        states[half].v1 ^= (words){0xdd, 0xdd, 0xdd, 0xdd};
    sip_finish_lanes(states, low);
}

/* Hashes the waiting keys side by side; false if their sizes do not allow it. */
static bool hash_in_lanes(const sip_state *keyed, waiting_keys *keys)
{
    uint64_t high[LANES], low[LANES];
    size_t differences = 0;
    for (size_t index = 1; index < keys->count; index++)
        differences |= keys->size[0] ^ keys->size[index];
    /* One key is faster by itself, and the sizes of others may differ in their last word only. */
    if (keys->count < 2 || differences >= sizeof(uint64_t))
        return false;
    for (size_t index = keys->count; index < LANES; index++) {
        keys->data[index] = keys->data[0];
        keys->size[index] = keys->size[0];
    }
    hash_lanes(keyed, keys, high, low);
    memcpy(keys->high, high, keys->count * sizeof *high);
    memcpy(keys->low, low, keys->count * sizeof *low);
    return true;
}

#else
#define HAS_LANES 0
#endif

/* Hashes the waiting keys into the next places of their columns. */
static void hash_waiting(const sip_state *keyed, waiting_keys *keys, bool has_lanes)
{
#if HAS_LANES
    if (!has_lanes || !hash_in_lanes(keyed, keys))
#else
    (void)has_lanes;
#endif
        for (size_t index = 0; index < keys->count; index++)
            sip_hash(*keyed, keys->data[index], keys->size[index], &keys->high[index], &keys->low[index]);
    keys->high += keys->count;
    keys->low += keys->count;
    keys->count = 0;
}

/* Returns whether this processor can hash in lanes. */
static bool can_use_lanes(void)
{
#if HAS_LANES
    return processor_has_lanes();
#else
    return false;
#endif
}

void kernel_siphash128_each(const uint8_t *key16, const uint8_t *const *data, const size_t *sizes, size_t count,
                            uint64_t *high, uint64_t *low)
{
    const sip_state keyed = sip_begin(key16);
    const bool has_lanes = can_use_lanes();
    waiting_keys keys = {.high = high, .low = low};
    for (size_t index = 0; index < count; index++) {
        keys.data[keys.count] = data[index];
        keys.size[keys.count++] = sizes[index];
        if (keys.count == LANES)
            hash_waiting(&keyed, &keys, has_lanes);
    }
    hash_waiting(&keyed, &keys, has_lanes);
}

kernel_status kernel_hash_keys(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *hash_key16,
                               uint32_t first_ordinal, const batch_versions *versions, key_columns *columns)
{
    record_walk walk;
    record_frame frame;
    const sip_state keyed = sip_begin(hash_key16);
    waiting_keys keys = {.high = columns->hash_high, .low = columns->hash_low};
    uint32_t ordinal = first_ordinal;
    size_t count = 0;
    const bool has_lanes = can_use_lanes();
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    for (; walk.left_count > 0; ordinal++) {
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (frame.key_size < 0)
            continue;
        keys.data[keys.count] = frame.key;
        keys.size[keys.count++] = (size_t)frame.key_size;
        if (keys.count == LANES)
            hash_waiting(&keyed, &keys, has_lanes);
        columns->ordinal[count] = ordinal;
        columns->tombstone[count] = frame.value_size < 0;
        if (versions != NULL) {
            const kernel_status status = version_of(versions, &frame, &columns->version[count]);
            if (UNLIKELY(status != KERNEL_OK))
                return status;
        }
        count++;
    }
    hash_waiting(&keyed, &keys, has_lanes);
    columns->count = count;
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}

static const uint32_t MURMUR_SEED = 0x9747b28c;
enum { MURMUR_SHIFT = 24 };

uint32_t kernel_murmur2(const uint8_t *key, size_t size)
{
    const uint32_t multiplier = 0x5bd1e995;
    uint32_t state = MURMUR_SEED ^ (uint32_t)size;
    uint32_t last = 0;
    for (; size >= sizeof(uint32_t); size -= sizeof(uint32_t), key += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, key, sizeof word);
        word *= multiplier;
        word ^= word >> MURMUR_SHIFT;
        state = (state * multiplier) ^ (word * multiplier);
    }
    for (size_t index = 0; index < size; index++)
        last |= (uint32_t)key[index] << (8 * index);
    if (size > 0)
        state = (state ^ last) * multiplier;
    state = (state ^ state >> 13) * multiplier;
    return state ^ state >> 15;
}

/* A key of a column costs a few multiplications for each word. Those of different keys do not wait for each other. */
static const uint64_t PARTITION_MULTIPLIER = 0x9e3779b97f4a7c15u;

/* Another number, each of whose bits depends on all bits. */
static inline uint64_t spread(uint64_t number)
{
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 32;
}

static inline uint64_t hash_of(const uint8_t *key, size_t size)
{
    uint64_t hash = spread(size), word;
    const size_t left = size % sizeof word;
    for (const uint8_t *const end = key + size - left; key < end; key += sizeof word) {
        memcpy(&word, key, sizeof word);
        hash = spread(hash ^ word);
    }
    if (left == 0)
        return hash;
    /* The last bytes are the upper ones of the word. */
    if (size > sizeof word) {
        const unsigned unused_bits = 8 * (unsigned)(sizeof word - left);
        memcpy(&word, key + left - sizeof word, sizeof word);
        word = word >> unused_bits << unused_bits;
    } else {
        word = 0;
        for (size_t index = 0; index < left; index++)
            word |= (uint64_t)key[index] << 8 * (sizeof word - left + index);
    }
    return spread(hash ^ word);
}

static inline int64_t bound_at(const uint8_t *bounds, bool is_wide, size_t index)
{
    int32_t narrow;
    int64_t wide;
    if (is_wide) {
        memcpy(&wide, bounds + index * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, bounds + index * sizeof narrow, sizeof narrow);
    return narrow;
}

bool kernel_hash_key_column(const uint8_t *bounds, bool is_wide, const uint8_t *data, size_t size,
                            const int32_t *partitions, size_t count, size_t max_size, uint64_t *hashes,
                            size_t *long_count)
{
    int64_t start = bound_at(bounds, is_wide, 0);
    *long_count = 0;
    if (start < 0)
        return false;
    for (size_t index = 0; index < count; index++) {
        const int64_t end = bound_at(bounds, is_wide, index + 1);
        if (end < start || (uint64_t)end > size)
            return false;
        const size_t key_size = (size_t)(end - start);
        const bool is_long = key_size > max_size;
        const uint64_t hash = is_long ? 0 : hash_of(data + start, key_size);
        *long_count += is_long;
        /* Distinct for each partition, because the multiplier is odd. */
        hashes[index] = hash ^ (uint64_t)(int64_t)partitions[index] * PARTITION_MULTIPLIER;
        start = end;
    }
    return true;
}
