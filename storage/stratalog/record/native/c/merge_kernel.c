/* Merges sorted key streams: finds the last record of each key.
 *
 * All windows are walked together, by ranges of the hash that hold a few hundred distinct keys. Within a range the
 * windows are taken from the newest to the oldest, through one small table that stays in the first-level cache: the
 * first to bring a hash survives. There is no heap, and no memory but the table.
 *
 * The width of a range follows the density of the keys: it doubles after a range with few keys; a range that
 * overflows the table is begun again with a quarter of its width. That is sound: a bit that a part of the range has
 * set belongs to the newest window with that hash, whatever the range. */
#include "key_column.h"
#include "kernels.h"
#include "record_frame.h"

__extension__ typedef unsigned __int128 hash128;

enum { TABLE_BITS = 10, TABLE_SLOTS = 1 << TABLE_BITS, MAX_KEYS = 640, GOAL_KEYS = 384, FEW_KEYS = 160 };

typedef struct {
    uint64_t high, low; /* both zero if empty */
} table_slot;

typedef struct {
    table_slot slots[TABLE_SLOTS];
    size_t keys_count;
    bool has_zero; /* the hash that looks like an empty slot */
} key_table;

static inline hash128 load_hash(const merge_window *window, size_t index)
{
    return (hash128)load64(window->hash_high, index) << 64 | load64(window->hash_low, index);
}

static inline void table_clear(key_table *table)
{
    memset(table->slots, 0, sizeof table->slots);
    table->keys_count = 0;
    table->has_zero = false;
}

/* Adds the hash; returns whether it was new. */
static inline bool table_add(key_table *table, hash128 hash)
{
    uint64_t high = (uint64_t)(hash >> 64), low = (uint64_t)hash;
    /* The multiplication spreads even numbers that no hash function made. */
    size_t index = low * 0x9e3779b97f4a7c15u >> (64 - TABLE_BITS);
    if (UNLIKELY(hash == 0)) {
        bool is_new = !table->has_zero;
        table->has_zero = true;
        return is_new;
    }
    for (;; index = (index + 1) & (TABLE_SLOTS - 1)) {
        table_slot *slot = &table->slots[index];
        if (slot->high == high && slot->low == low)
            return false;
        if ((slot->high | slot->low) == 0) {
            *slot = (table_slot){high, low};
            table->keys_count++;
            return true;
        }
    }
}

typedef enum { RANGE_DONE, RANGE_OVERFLOW, RANGE_NOT_SORTED, RANGE_BAD_ORDINAL } range_status;

/* Takes a window's entries up to `last`. */
static range_status merge_range(merge_window *window, hash128 last, key_table *table)
{
    const uint64_t bits_count = (uint64_t)window->survivors_bytes * 8;
    size_t index = window->consumed;
    range_status status = RANGE_DONE;
    hash128 previous = index > 0 ? load_hash(window, index - 1) : 0;
    for (; index < window->count; index++) {
        hash128 hash = load_hash(window, index);
        uint32_t ordinal;
        if (hash > last)
            break;
        if (UNLIKELY(index > 0 && hash <= previous)) {
            status = RANGE_NOT_SORTED;
            break;
        }
        ordinal = load32(window->ordinal, index);
        if (UNLIKELY(ordinal >= bits_count)) {
            status = RANGE_BAD_ORDINAL;
            break;
        }
        if (table_add(table, hash))
            window->survivors[ordinal >> 3] |= (uint8_t)(1 << (ordinal & 7));
        if (UNLIKELY(table->keys_count > MAX_KEYS)) {
            status = RANGE_OVERFLOW;
            break;
        }
        previous = hash;
    }
    window->consumed = index;
    return status;
}

/* The lowest hash that was not taken yet; false if there is none. */
static bool lowest_hash(const merge_window *windows, size_t windows_count, hash128 limit, hash128 *lowest)
{
    bool is_found = false;
    for (size_t index = 0; index < windows_count; index++) {
        const merge_window *window = &windows[index];
        if (window->consumed < window->count) {
            hash128 hash = load_hash(window, window->consumed);
            if (hash <= limit && (!is_found || hash < *lowest)) {
                *lowest = hash;
                is_found = true;
            }
        }
    }
    return is_found;
}

/* A first guess: as if all entries had distinct keys, spread evenly. */
static hash128 first_width(const merge_window *windows, size_t windows_count, hash128 start, hash128 limit)
{
    size_t entries_count = 0;
    hash128 highest = start;
    for (size_t index = 0; index < windows_count; index++) {
        const merge_window *window = &windows[index];
        entries_count += window->count;
        if (window->count > 0) {
            hash128 hash = load_hash(window, window->count - 1);
            highest = hash > highest ? hash : highest;
        }
    }
    highest = highest < limit ? highest : limit;
    return (highest - start) / (entries_count / GOAL_KEYS + 1) + 1;
}

/* From newest to oldest; on overflow the windows are as before the range. */
static range_status merge_windows_range(merge_window *windows, size_t windows_count, hash128 last, key_table *table)
{
    table_clear(table);
    for (size_t index = windows_count; index-- > 0;) {
        merge_window *window = &windows[index];
        range_status status;
        window->range_start = window->consumed;
        status = merge_range(window, last, table);
        if (status == RANGE_OVERFLOW)
            for (; index < windows_count; index++)
                windows[index].consumed = windows[index].range_start;
        if (status != RANGE_DONE)
            return status;
    }
    return RANGE_DONE;
}

kernel_status kernel_check_keys(const uint8_t *hash_high, const uint8_t *hash_low, const uint8_t *ordinal,
                                const uint8_t *tombstone, size_t count, uint64_t record_count)
{
    bool is_sorted = true;
    uint32_t highest = 0;
    uint8_t tombstone_bits = 0;
    /* The loops have no early exit, so that the compiler can take several entries at a time. */
    for (size_t index = 1; index < count; index++) {
        uint64_t high = load64(hash_high, index), before = load64(hash_high, index - 1);
        is_sorted &= high > before || (high == before && load64(hash_low, index) > load64(hash_low, index - 1));
    }
    for (size_t index = 0; index < count; index++) {
        uint32_t number = load32(ordinal, index);
        highest = number > highest ? number : highest;
    }
    for (size_t index = 0; index < count; index++)
        tombstone_bits |= tombstone[index];
    if (!is_sorted)
        return KERNEL_BAD_ORDER;
    if (count > 0 && highest >= record_count)
        return KERNEL_BAD_ORDINAL;
    return tombstone_bits > 1 ? KERNEL_BAD_TOMBSTONE : KERNEL_OK;
}

kernel_status kernel_merge(merge_window *windows, size_t windows_count, uint64_t limit_high, uint64_t limit_low)
{
    const hash128 limit = (hash128)limit_high << 64 | limit_low;
    key_table table;
    hash128 start = 0, width = 0; /* inclusive: the range is [start, start + width] */
    bool has_width = false;
    while (lowest_hash(windows, windows_count, limit, &start)) {
        range_status status;
        if (!has_width)
            width = first_width(windows, windows_count, start, limit);
        has_width = true;
        do {
            hash128 last = width < limit - start ? start + width : limit;
            status = merge_windows_range(windows, windows_count, last, &table);
            /* A range of one hash holds one key, so this ends. */
            if (status == RANGE_OVERFLOW)
                width /= 4;
        } while (status == RANGE_OVERFLOW);
        if (status == RANGE_NOT_SORTED)
            return KERNEL_BAD_ORDER;
        if (status == RANGE_BAD_ORDINAL)
            return KERNEL_BAD_ORDINAL;
        if (table.keys_count < FEW_KEYS)
            width = width >> 127 ? width : width * 2 + 1;
    }
    return KERNEL_OK;
}
