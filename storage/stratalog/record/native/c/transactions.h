/* The transactions that the kernels of the log cleaner track: aborted ones, and open ones with data so far.
 * offset_map.py explains them. */
#ifndef STRATALOG_TRANSACTIONS_H
#define STRATALOG_TRANSACTIONS_H

#include "batch_frame.h"

/* The producer's data in [first offset, last offset) was aborted; the last offset is the marker's. */
typedef struct {
    int64_t producer_id;
    int64_t first_offset;
    int64_t last_offset;
} aborted_span;

typedef struct {
    const aborted_span *spans; /* ascending by producer and first offset; a producer's last offsets do not descend */
    size_t count;
} aborted_spans;

/* Finds among `count` entries of transaction indexes those with data in [start_offset, end_offset), writes them in the
 * form of `aborted_spans`, and returns their number. There must be room for all. Spans of one producer overlap only if
 * something is damaged; the later one then ends at the highest end so far. */
size_t kernel_aborted_spans(const uint8_t *entries, size_t count, int64_t start_offset, int64_t end_offset,
                            aborted_span *spans);

static inline bool is_aborted(const aborted_spans *aborted, const batch_frame *batch)
{
    size_t low = 0, high = aborted->count;
    if (!(batch->attributes & TRANSACTIONAL_BIT) || (batch->attributes & CONTROL_BIT))
        return false;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const aborted_span *span = &aborted->spans[middle];
        if (span->producer_id < batch->producer_id ||
            (span->producer_id == batch->producer_id && span->first_offset <= batch->base_offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && aborted->spans[low - 1].producer_id == batch->producer_id &&
           batch->base_offset < aborted->spans[low - 1].last_offset;
}

typedef struct {
    int64_t producer_id;
    int64_t epoch;
} producer_epoch;

/* A producer's transaction with data so far. */
typedef struct {
    int64_t producer_id;
    int64_t is_kept; /* a batch of it stays, even an empty one */
} open_transaction;

/* The open transactions: few at a time, ascending by producer. */
typedef struct {
    open_transaction *entries;
    size_t count;
    size_t room;
} open_transactions;

static inline size_t open_place(const open_transactions *open, int64_t producer_id)
{
    size_t low = 0, high = open->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (open->entries[middle].producer_id < producer_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The producer's open transaction; NULL if it has none with data. */
static inline open_transaction *open_of(const open_transactions *open, int64_t producer_id)
{
    const size_t place = open_place(open, producer_id);
    return place < open->count && open->entries[place].producer_id == producer_id ? &open->entries[place] : NULL;
}

/* Notes a batch of the producer's transaction. There must be room for another transaction. */
static inline void note_data(open_transactions *open, int64_t producer_id, bool is_kept)
{
    const size_t place = open_place(open, producer_id);
    open_transaction *entry = &open->entries[place];
    if (place == open->count || entry->producer_id != producer_id) {
        memmove(entry + 1, entry, (open->count - place) * sizeof *entry);
        *entry = (open_transaction){.producer_id = producer_id};
        open->count++;
    }
    entry->is_kept |= is_kept;
}

static inline void end_transaction(open_transactions *open, int64_t producer_id)
{
    open_transaction *entry = open_of(open, producer_id);
    if (entry == NULL)
        return;
    open->count--;
    memmove(entry, entry + 1, (size_t)(open->entries + open->count - entry) * sizeof *entry);
}

#endif
