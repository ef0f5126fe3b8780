/* The kernels for the batches that clients append. batch_kernels.py documents them. All are safe on any bytes. */
#ifndef STRATALOG_APPEND_KERNEL_H
#define STRATALOG_APPEND_KERNEL_H

#include "batch_frame.h"
#include "kernels.h"

/* The limits of a topic. */
typedef struct {
    size_t max_batch_bytes;
    int64_t earliest_ms; /* of a record's timestamp, like the next one inclusive */
    int64_t latest_ms;
    bool must_have_keys;
} append_limits;

typedef struct {
    int64_t offset_count;
    int64_t max_timestamp;
    int64_t batch_count;
    bool has_producer;
} accepted_request;

/* Whether `data` is one or more whole batches that a log with these limits may store as they are: uncompressed, without
 * a transaction, with a true checksum, sound records for all of their offsets, and the timestamp of the newest. A batch
 * with a producer is alone. Whatever else is right is left to Python. */
bool kernel_accept_append(const uint8_t *data, size_t size, const append_limits *limits, accepted_request *accepted);

/* Writes the base offset and the leader epoch into the header of a batch; the length between them stays. */
void kernel_stamp(uint8_t *header, int64_t base_offset, int32_t leader_epoch);

#endif
