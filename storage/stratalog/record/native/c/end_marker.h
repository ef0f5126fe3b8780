/* The marker that ends a transaction. Twin of end_transaction_marker.py, for the form that brokers write. */
#ifndef STRATALOG_END_MARKER_H
#define STRATALOG_END_MARKER_H

#include "batch_frame.h"
#include "record_frame.h"

/* The record of a control batch. */
typedef struct {
    int64_t timestamp_delta;
    bool is_abort;
} end_marker;

enum { CONTROL_KEY_BYTES = 4, CONTROL_VALUE_BYTES = 6, ABORT_TYPE = 0, COMMIT_TYPE = 1 };

/* Reads the end of a transaction in the form that brokers write; false for any other control batch. */
static inline bool read_marker(const batch_frame *batch, end_marker *marker)
{
    record_walk walk;
    record_frame frame;
    uint16_t control_type;
    if (batch->attributes & CODEC_MASK || !(batch->attributes & TRANSACTIONAL_BIT) || batch->records_count != 1 ||
        !walk_begin(&walk, records_of(batch), records_bytes(batch), 1) || !walk_next(&walk, &frame) ||
        !walk_end(&walk) || frame.offset_delta > batch->last_offset_delta || frame.key_size < CONTROL_KEY_BYTES ||
        frame.value_size < CONTROL_VALUE_BYTES || read_be16(frame.key) != 0 || read_be16(frame.value) != 0)
        return false;
    control_type = read_be16(frame.key + sizeof control_type);
    marker->timestamp_delta = frame.timestamp_delta;
    marker->is_abort = control_type == ABORT_TYPE;
    return control_type == ABORT_TYPE || control_type == COMMIT_TYPE;
}

#endif
