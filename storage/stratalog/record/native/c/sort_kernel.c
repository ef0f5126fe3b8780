/* Sorts key entries: two rounds of scattering by the leading bits of the hash, then small sorts that stay in the
 * first-level cache. Hashes of a keyed function are spread evenly, so buckets are small. For other entries (many records
 * of one key, or entries that no hash function made) a merge sort keeps the time at n log n. */
#include "kernels.h"
#include "record_frame.h"

#include <stdlib.h>

typedef struct {
    uint64_t high;
    uint64_t low;
    uint64_t place; /* ordinal << 1 | tombstone: the highest one of a hash wins; with versions the index in the input */
} key_entry;

enum { BUCKET_ENTRIES = 8, MAX_BUCKET_BITS = 11, MAX_BUCKETS = 1 << MAX_BUCKET_BITS, INSERTION_ENTRIES = 32 };

static inline bool is_before(const key_entry *left, const key_entry *right)
{
    if (left->high != right->high)
        return left->high < right->high;
    if (left->low != right->low)
        return left->low < right->low;
    return left->place < right->place;
}

static void insertion_sort(key_entry *entries, size_t count)
{
    for (size_t index = 1; index < count; index++) {
        key_entry entry = entries[index];
        size_t place = index;
        for (; place > 0 && is_before(&entry, &entries[place - 1]); place--)
            entries[place] = entries[place - 1];
        entries[place] = entry;
    }
}

static void merge_halves(const key_entry *source, key_entry *target, size_t middle, size_t count)
{
    size_t left = 0, right = middle;
    for (size_t index = 0; index < count; index++) {
        bool takes_right = left == middle || (right < count && is_before(&source[right], &source[left]));
        target[index] = takes_right ? source[right++] : source[left++];
    }
}

/* Sorts bottom up, without recursion. `scratch` has as much room as `entries`; the result is in `entries`. */
static void merge_sort(key_entry *entries, key_entry *scratch, size_t count)
{
    key_entry *source = entries, *target = scratch;
    for (size_t start = 0; start < count; start += INSERTION_ENTRIES) {
        size_t left = count - start;
        insertion_sort(entries + start, left < INSERTION_ENTRIES ? left : INSERTION_ENTRIES);
    }
    for (size_t width = INSERTION_ENTRIES; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t left = count - start;
            size_t size = left < 2 * width ? left : 2 * width;
            merge_halves(source + start, target + start, size < width ? size : width, size);
        }
        key_entry *swap = source;
        source = target;
        target = swap;
    }
    if (source != entries)
        memcpy(entries, source, count * sizeof *entries);
}

/* The number of leading bits that makes buckets of about BUCKET_ENTRIES. */
static int bucket_bits(size_t count)
{
    int bits = 0;
    while (bits < MAX_BUCKET_BITS && count >> bits > BUCKET_ENTRIES)
        bits++;
    return bits;
}

/* Turns counts into the positions where buckets begin. */
static void counts_to_starts(size_t *counts, size_t buckets_count)
{
    size_t start = 0;
    for (size_t bucket = 0; bucket < buckets_count; bucket++) {
        size_t count = counts[bucket];
        counts[bucket] = start;
        start += count;
    }
}

/* Sorts entries that agree in their first `skipped_bits`. `scratch` has as much room. */
static void sort_bucket(key_entry *entries, key_entry *scratch, size_t count, int skipped_bits)
{
    size_t starts[MAX_BUCKETS];
    int bits = bucket_bits(count);
    size_t buckets_count = (size_t)1 << bits;
    size_t begin = 0;
    if (count <= INSERTION_ENTRIES) {
        insertion_sort(entries, count);
        return;
    }
    memset(starts, 0, buckets_count * sizeof *starts);
    for (size_t index = 0; index < count; index++)
        starts[entries[index].high << skipped_bits >> (64 - bits)]++;
    counts_to_starts(starts, buckets_count);
    for (size_t index = 0; index < count; index++)
        scratch[starts[entries[index].high << skipped_bits >> (64 - bits)]++] = entries[index];
    /* Each start has become its bucket's end. */
    for (size_t bucket = 0; bucket < buckets_count; bucket++) {
        size_t size = starts[bucket] - begin;
        if (size <= INSERTION_ENTRIES)
            insertion_sort(scratch + begin, size);
        else
            merge_sort(scratch + begin, entries + begin, size);
        begin = starts[bucket];
    }
    memcpy(entries, scratch, count * sizeof *entries);
}

static inline uint64_t ordinal_bits(const key_columns *columns, size_t index)
{
    return (uint64_t)columns->ordinal[index] << 1 | (columns->tombstone[index] != 0);
}

/* Distributes the columns over buckets of rows; `ends` becomes the position where each bucket ends. */
static void scatter_columns(const key_columns *input, key_entry *entries, size_t *ends, int bits)
{
    size_t buckets_count = (size_t)1 << bits;
    memset(ends, 0, buckets_count * sizeof *ends);
    for (size_t index = 0; index < input->count; index++)
        ends[bits == 0 ? 0 : input->hash_high[index] >> (64 - bits)]++;
    counts_to_starts(ends, buckets_count);
    for (size_t index = 0; index < input->count; index++) {
        uint64_t high = input->hash_high[index];
        key_entry *entry = &entries[ends[bits == 0 ? 0 : high >> (64 - bits)]++];
        entry->high = high;
        entry->low = input->hash_low[index];
        entry->place = input->version != NULL ? index : ordinal_bits(input, index);
    }
}

/* Appends sorted entries, of equal hashes the last one. */
static void append_newest(const key_entry *entries, size_t count, key_columns *output)
{
    for (size_t index = 0; index < count; index++) {
        const key_entry *entry = &entries[index];
        const key_entry *next = entry + 1;
        if (index + 1 < count && next->high == entry->high && next->low == entry->low)
            continue;
        output->hash_high[output->count] = entry->high;
        output->hash_low[output->count] = entry->low;
        output->ordinal[output->count] = (uint32_t)(entry->place >> 1);
        output->tombstone[output->count] = entry->place & 1;
        output->count++;
    }
}

static inline bool is_same_key(const key_entry *left, const key_entry *right)
{
    return left->high == right->high && left->low == right->low;
}

/* Appends sorted entries, of equal hashes the one with the highest version, and the last of those. */
static void append_highest(const key_columns *input, const key_entry *entries, size_t count, key_columns *output)
{
    size_t index = 0;
    while (index < count) {
        const key_entry *first = &entries[index];
        size_t best = first->place;
        for (index++; index < count && is_same_key(first, &entries[index]); index++) {
            const size_t other = entries[index].place;
            const int64_t version = input->version[other];
            if (version > input->version[best] ||
                (version == input->version[best] && ordinal_bits(input, other) > ordinal_bits(input, best)))
                best = other;
        }
        output->hash_high[output->count] = first->high;
        output->hash_low[output->count] = first->low;
        output->version[output->count] = input->version[best];
        output->ordinal[output->count] = input->ordinal[best];
        output->tombstone[output->count] = input->tombstone[best] != 0;
        output->count++;
    }
}

kernel_status kernel_sort(const key_columns *input, key_columns *output)
{
    size_t ends[MAX_BUCKETS];
    int bits = bucket_bits(input->count);
    size_t buckets_count = (size_t)1 << bits;
    size_t largest = 0, begin = 0;
    key_entry *entries, *scratch;
    output->count = 0;
    if (input->count == 0)
        return KERNEL_OK;
    entries = calloc(input->count, sizeof *entries);
    if (entries == NULL)
        return KERNEL_NO_MEMORY;
    scatter_columns(input, entries, ends, bits);
    for (size_t bucket = 0; bucket < buckets_count; bucket++) {
        size_t size = ends[bucket] - (bucket == 0 ? 0 : ends[bucket - 1]);
        largest = size > largest ? size : largest;
    }
    scratch = calloc(largest, sizeof *scratch);
    if (scratch == NULL) {
        free(entries);
        return KERNEL_NO_MEMORY;
    }
    for (size_t bucket = 0; bucket < buckets_count; bucket++) {
        /* Equal hashes share a bucket, so each bucket can be appended as soon as it is sorted. */
        sort_bucket(entries + begin, scratch, ends[bucket] - begin, bits);
        if (input->version != NULL)
            append_highest(input, entries + begin, ends[bucket] - begin, output);
        else
            append_newest(entries + begin, ends[bucket] - begin, output);
        begin = ends[bucket];
    }
    free(scratch);
    free(entries);
    return KERNEL_OK;
}
