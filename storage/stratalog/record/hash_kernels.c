/* Hashes of keys: SipHash-2-4 with a 128-bit result for key streams, murmur2 for partitions. */
#include "kernels.h"
#include "record_frame.h"

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

kernel_status kernel_hash_keys(const uint8_t *payload, size_t size, int64_t records_count, const uint8_t *hash_key16,
                               uint32_t first_ordinal, key_columns *columns)
{
    record_walk walk;
    record_frame frame;
    const sip_state keyed = sip_begin(hash_key16);
    uint32_t ordinal = first_ordinal;
    size_t count = 0;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    for (; walk.left_count > 0; ordinal++) {
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (frame.key_size < 0)
            continue;
        sip_hash(keyed, frame.key, (size_t)frame.key_size, &columns->hash_high[count], &columns->hash_low[count]);
        columns->ordinal[count] = ordinal;
        columns->tombstone[count] = frame.value_size < 0;
        count++;
    }
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
