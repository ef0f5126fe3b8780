/* The kernels for plain records. plain_records.py documents them. All are safe on any bytes. */
#ifndef STRATALOG_PLAIN_KERNEL_H
#define STRATALOG_PLAIN_KERNEL_H

#include "kernels.h"

typedef struct {
    int64_t records_count;
    int64_t section_bytes;
    int64_t base_timestamp; /* of the first record; -1 without records */
    int64_t max_timestamp;
    int64_t bad_timestamp; /* after KERNEL_BAD_TIMESTAMP */
} plain_summary;

/* The partition of the keys; -1 without a key. */
typedef struct {
    int64_t partition;
    int64_t other_index; /* of the first record whose key belongs to another one; -1 without such a record */
    int64_t other_partition;
} plain_place;

kernel_status kernel_measure_plain(const uint8_t *message, size_t size, int64_t now, plain_summary *summary);

/* `target` has room for the section of the summary, which the same message gave. */
kernel_status kernel_write_plain(const uint8_t *message, size_t size, int64_t now, const plain_summary *summary,
                                 uint8_t *target);

kernel_status kernel_place_plain(const uint8_t *message, size_t size, uint32_t partition_count, plain_place *place);

#endif
