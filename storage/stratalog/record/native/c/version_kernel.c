/* Merges sorted key streams with versions: of equal hashes the entry with the highest version survives, and of those
 * with this version the newest. All entries of a call are sorted together, oldest window first, so that the sort
 * decides. */
#include "key_column.h"
#include "kernels.h"
#include "record_frame.h"

#include <stdlib.h>

/* Counts and proves the entries of a window up to the limit. */
static kernel_status take_entries(merge_window *window, uint64_t limit_high, uint64_t limit_low)
{
    const uint64_t bits_count = (uint64_t)window->survivors_bytes * 8;
    uint64_t high_before = 0, low_before = 0;
    size_t index = 0;
    for (; index < window->count; index++) {
        const uint64_t high = load64(window->hash_high, index), low = load64(window->hash_low, index);
        if (high > limit_high || (high == limit_high && low > limit_low))
            break;
        if (UNLIKELY(index > 0 && (high < high_before || (high == high_before && low <= low_before))))
            return KERNEL_BAD_ORDER;
        if (UNLIKELY(load32(window->ordinal, index) >= bits_count))
            return KERNEL_BAD_ORDINAL;
        high_before = high;
        low_before = low;
    }
    window->consumed = index;
    return KERNEL_OK;
}

/* Both columns of entries lie in one piece of memory, the wider numbers first. */
static void place(key_columns *columns, uint8_t *memory, size_t count)
{
    columns->hash_high = (uint64_t *)memory;
    columns->hash_low = columns->hash_high + count;
    columns->version = (int64_t *)(columns->hash_low + count);
    columns->ordinal = (uint32_t *)(columns->version + count);
    columns->tombstone = (uint8_t *)(columns->ordinal + count);
}

enum { ENTRY_BYTES = 8 + 8 + 8 + 4 + 1, ALIGNMENT = 8 };

/* An entry's ordinal is its place among all entries of the merge. */
static void gather(const merge_window *windows, size_t windows_count, key_columns *columns, uint32_t *window_of)
{
    size_t count = 0;
    for (size_t number = 0; number < windows_count; number++) {
        const merge_window *window = &windows[number];
        for (size_t index = 0; index < window->consumed; index++, count++) {
            columns->hash_high[count] = load64(window->hash_high, index);
            columns->hash_low[count] = load64(window->hash_low, index);
            columns->version[count] = (int64_t)load64(window->version, index);
            columns->ordinal[count] = (uint32_t)count;
            window_of[count] = (uint32_t)number;
        }
    }
    columns->count = count;
}

static void set_bits(const merge_window *windows, const key_columns *winners, const uint32_t *window_of,
                     const size_t *starts)
{
    for (size_t index = 0; index < winners->count; index++) {
        const uint32_t place = winners->ordinal[index], number = window_of[place];
        const uint32_t ordinal = load32(windows[number].ordinal, place - starts[number]);
        windows[number].survivors[ordinal >> 3] |= (uint8_t)(1 << (ordinal & 7));
    }
}

kernel_status kernel_merge_versions(merge_window *windows, size_t windows_count, uint64_t limit_high,
                                    uint64_t limit_low)
{
    key_columns entries, winners;
    uint8_t *memory;
    uint32_t *window_of;
    size_t *starts;
    size_t count = 0, entries_bytes;
    kernel_status status = KERNEL_OK;
    for (size_t number = 0; number < windows_count; number++) {
        status = take_entries(&windows[number], limit_high, limit_low);
        if (status != KERNEL_OK)
            return status;
        count += windows[number].consumed;
    }
    if (count == 0)
        return KERNEL_OK;
    entries_bytes = (count * ENTRY_BYTES + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    memory = count > UINT32_MAX ? NULL : calloc(2, entries_bytes);
    window_of = calloc(count, sizeof *window_of);
    starts = calloc(windows_count, sizeof *starts);
    if (memory != NULL && window_of != NULL && starts != NULL) {
        place(&entries, memory, count);
        place(&winners, memory + entries_bytes, count);
        for (size_t number = 1; number < windows_count; number++)
            starts[number] = starts[number - 1] + windows[number - 1].consumed;
        gather(windows, windows_count, &entries, window_of);
        status = kernel_sort(&entries, &winners);
        if (status == KERNEL_OK)
            set_bits(windows, &winners, window_of, starts);
    } else {
        status = KERNEL_NO_MEMORY;
    }
    free(memory);
    free(window_of);
    free(starts);
    return status;
}
