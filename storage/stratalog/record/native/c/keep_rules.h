/* The rules of compaction: which records stay, and for how long. Twin of keep_rules.py, which explains them; a test
 * compares both over a table of all cases. The log cleaner and the compaction of objects call these functions. */
#ifndef STRATALOG_KEEP_RULES_H
#define STRATALOG_KEEP_RULES_H

#include "batch_frame.h"

typedef enum {
    RECORD_STAYS = 0,
    RECORD_OUTDATED,
    RECORD_WITHOUT_KEY,
    RECORD_TOMBSTONE_DUE,
} record_fate;

static inline record_fate fate_of_record(bool has_key, bool is_newest, bool is_tombstone, bool is_due)
{
    if (!has_key)
        return RECORD_WITHOUT_KEY;
    if (!is_newest)
        return RECORD_OUTDATED;
    return is_tombstone && is_due ? RECORD_TOMBSTONE_DUE : RECORD_STAYS;
}

static inline bool has_horizon(const batch_frame *batch)
{
    return batch->attributes & DELETE_HORIZON_BIT;
}

/* The delete horizon of the batch has passed. */
static inline bool is_due(const batch_frame *batch, int64_t now_ms)
{
    return has_horizon(batch) && batch->base_timestamp <= now_ms;
}

/* The batch gets its delete horizon now. `has_tombstones`: some of the kept records are tombstones. */
static inline bool gets_horizon(const batch_frame *batch, bool has_tombstones, bool sees_all_older)
{
    return !has_horizon(batch) && has_tombstones && sees_all_older;
}

/* What becomes of the marker that ends a transaction. */
typedef enum {
    MARKER_STAYS,
    MARKER_STAYS_ONCE_MORE,
    MARKER_GETS_HORIZON,
    MARKER_STAYS_UNTIL_HORIZON,
    MARKER_GOES,
} marker_fate;

/* `has_data`: the log had data of the transaction; `is_data_kept`: some of it stays. */
static inline marker_fate fate_of_marker(const batch_frame *batch, bool has_data, bool is_data_kept, bool holds_epoch,
                                         int64_t now_ms)
{
    if (holds_epoch || is_data_kept)
        return MARKER_STAYS;
    if (has_data)
        return MARKER_STAYS_ONCE_MORE;
    if (!has_horizon(batch))
        return MARKER_GETS_HORIZON;
    return is_due(batch, now_ms) ? MARKER_GOES : MARKER_STAYS_UNTIL_HORIZON;
}

#endif
