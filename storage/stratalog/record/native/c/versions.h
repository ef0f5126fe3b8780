/* The version of a record, which decides under `compaction.strategy=timestamp` or `header`. Twin of keep_rules.py. */
#ifndef STRATALOG_VERSIONS_H
#define STRATALOG_VERSIONS_H

#include "batch_frame.h"
#include "kernels.h"
#include "record_frame.h"

static const int64_t NO_VERSION = INT64_MIN;
enum { VERSION_BYTES = 8 };

/* The versions of the records of one batch: the values of their headers of that name, or their timestamps. */
struct batch_versions {
    const uint8_t *header; /* NULL if the timestamp is the version */
    size_t header_size;
    int64_t base_timestamp;
    int64_t append_time;
    bool has_append_time;
};

static inline batch_versions versions_in(const batch_versions *rule, const batch_frame *batch)
{
    batch_versions versions = *rule;
    versions.base_timestamp = batch->base_timestamp;
    versions.append_time = batch->max_timestamp;
    versions.has_append_time = batch->attributes & TIMESTAMP_TYPE_BIT;
    return versions;
}

/* The value of the last header of that name; false if a header has a bad frame. */
static inline bool version_in_headers(const batch_versions *versions, const record_frame *frame, int64_t *version)
{
    const uint8_t *position;
    header_frame header;
    *version = NO_VERSION;
    for (int32_t left = headers_begin(frame, &position); left != 0; left--) {
        if (left < 0 || !headers_next(frame, &position, &header))
            return false;
        if ((size_t)header.name_size == versions->header_size &&
            memcmp(header.name, versions->header, versions->header_size) == 0)
            *version = header.value_size == VERSION_BYTES ? (int64_t)read_be64(header.value) : NO_VERSION;
    }
    return true;
}

/* Finds the version of a record. */
static inline kernel_status version_of(const batch_versions *versions, const record_frame *frame, int64_t *version)
{
    if (versions->header != NULL)
        return version_in_headers(versions, frame, version) ? KERNEL_OK : KERNEL_BAD_FRAME;
    *version = versions->append_time;
    if (!versions->has_append_time &&
        __builtin_add_overflow(versions->base_timestamp, frame->timestamp_delta, version))
        return KERNEL_BAD_TIMESTAMP;
    return KERNEL_OK;
}

#endif
