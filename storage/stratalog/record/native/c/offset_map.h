/* The kernels of the log cleaner. offset_map.py documents them.
 *
 * The map is a ring of slots of 24 bytes. The home of a key is its hash, scaled to the ring; keys lie at their homes or
 * after them, in the order of their hashes, with no empty slot between a key and its home. Because of that order a
 * look-up ends at the first higher key, and passes five slots on average if nine slots of ten are in use, whether it
 * finds the key or not. One slot is always empty.
 *
 * A map with versions has a number of 8 bytes beside each slot, that of the record with the offset.
 *
 * A look-up in a map that exceeds the cache waits for memory. So records are taken 64 at a time: all their keys are
 * hashed and their homes prefetched before the first look-up.
 *
 * All are safe on any bytes. A map is for one thread at a time; two threads would find wrong offsets, but would stay
 * inside the slots and end. */
#ifndef STRATALOG_OFFSET_MAP_H
#define STRATALOG_OFFSET_MAP_H

#include "batch_frame.h"
#include "batch_kernels.h"
#include "keep_rules.h"
#include "record_frame.h"
#include "transactions.h"
#include "versions.h"

typedef struct {
    uint64_t high;
    uint64_t low;
    uint64_t next_offset; /* the offset plus 1; 0 if the slot is empty */
} map_slot;

typedef struct {
    map_slot *slots;
    uint64_t slots_count; /* one more than capacity */
    uint64_t max_entries;
    uint64_t count;
    int64_t latest_offset;
    bool is_full;
    bool is_closed;    /* takes no further keys and offsets */
    int64_t *versions; /* one for each slot; NULL without versions */
    batch_versions rule;
    uint8_t hash_key[HASH_KEY_BYTES];
} offset_map;

/* Gives a zeroed map its slots, with versions unless `rule` is NULL; false without memory. Both may take long: not under the interpreter lock. */
bool kernel_map_begin(offset_map *map, const uint8_t *hash_key16, uint64_t capacity, uint64_t max_entries,
                      const batch_versions *rule);
void kernel_map_end(offset_map *map);

/* The offset of a key, -1 if it is not known. */
int64_t kernel_map_get(const offset_map *map, const uint8_t *key, size_t size);

/* Proves the layout. */
bool kernel_map_check(const offset_map *map);

typedef struct {
    size_t end_position;
    int64_t next_offset;
} put_result;

kernel_status kernel_put_records(offset_map *map, const uint8_t *payload, size_t size, int64_t records_count,
                                 int64_t base_offset, int64_t first_offset, int64_t last_offset_delta,
                                 const batch_versions *versions);

void kernel_put_batches(offset_map *map, const uint8_t *data, size_t size, int64_t first_offset, int64_t stop_offset,
                        const aborted_spans *aborted, put_result *result);

/* The cleaner's treatment of a batch, by its header. */
typedef enum { BATCH_NOT_TAKEN = 0, BATCH_OF_RECORDS, BATCH_ABORTED, BATCH_OF_CONTROL } batch_kind;

/* The codec does not matter for a batch without records, or one that loses all. */
static inline batch_kind kind_of(const batch_frame *batch, int64_t latest_offset, const aborted_spans *aborted)
{
    if (batch->base_offset > latest_offset)
        return BATCH_NOT_TAKEN;
    if (batch->attributes & CONTROL_BIT)
        return BATCH_OF_CONTROL;
    if (UNLIKELY(is_aborted(aborted, batch)))
        return BATCH_ABORTED;
    if (batch->records_count > 0 ? batch->attributes & CODEC_MASK : batch->size > HEADER_BYTES)
        return BATCH_NOT_TAKEN;
    return BATCH_OF_RECORDS;
}

/* The result of a look-up: a slot. */
typedef struct {
    uint64_t index; /* the place of the key, or the place to insert it */
    bool is_found;
} map_place;

static inline uint64_t home_of(const offset_map *map, uint64_t hash_high)
{
    return (uint64_t)((unsigned __int128)hash_high * map->slots_count >> 64);
}

/* The memory that a look-up from `home` usually reads. */
static inline void prefetch_home(const offset_map *map, uint64_t home)
{
    __builtin_prefetch(&map->slots[home]);
    __builtin_prefetch((const uint8_t *)(&map->slots[home] + 2) - 1);
}

map_place kernel_map_seek(const offset_map *map, uint64_t home, uint64_t high, uint64_t low);

/* Whether a record is above the one at that place: by its version if there is one, then by its offset. */
static inline bool is_above(const offset_map *map, uint64_t index, int64_t version, uint64_t next_offset)
{
    if (map->versions != NULL && map->versions[index] != version)
        return version > map->versions[index];
    return next_offset > map->slots[index].next_offset;
}

typedef struct {
    int64_t now_ms;
    int64_t horizon_ms;
    const int64_t *kept_empty; /* ascending */
    size_t kept_empty_count;
    aborted_spans aborted;
    const producer_epoch *kept_epochs; /* ascending */
    size_t kept_epochs_count;
} clean_rule;

typedef struct {
    int64_t timestamp_delta;
    uint32_t position; /* in the records section */
    uint8_t fate;
    bool is_tombstone;
} judged_record;

/* The memory that a call needs. */
typedef struct {
    size_t target_bytes;
    size_t judged_count;
    size_t data_count;    /* batches of transactions */
    size_t control_count; /* control batches */
} clean_room;

typedef struct {
    batch_output output;
    size_t end_position;
    int64_t next_offset;
    size_t kept_count; /* batches that stay */
    int64_t records_in;
    int64_t records_kept;
    int64_t null_key_count;
    int64_t dropped_tombstone_count;
    int64_t aborted_count; /* records */
    int64_t dropped_marker_count;
    size_t dropped_aborts_count;
    bool has_waiting_marker;
    int64_t earliest_horizon, latest_horizon; /* of kept batches; INT64_MAX and -1 if there is none */
} clean_result;

void kernel_measure_clean(const uint8_t *data, size_t size, const offset_map *map, const clean_rule *rule,
                          clean_room *room);

/* The memory that a call writes to, of the measured size. */
typedef struct {
    judged_record *judged;
    uint8_t *target;
    int64_t *dropped_aborts; /* last offsets of dropped markers of aborted transactions */
    open_transactions *open;
} clean_memory;

void kernel_clean_batches(const uint8_t *data, size_t size, const offset_map *map, const clean_rule *rule,
                          const clean_room *room, const clean_memory *memory, clean_result *result);

/* The records of one batch that stay. */
typedef struct {
    size_t size;
    int64_t count;
    int64_t max_timestamp_delta; /* after the shift */
    int64_t tombstone_count;
    int64_t dropped_tombstone_count;
    int64_t null_key_count;
} kept_records;

/* `judged` has room for all records, `target` for the payload and, with a shift, for COPY_GROWTH_BYTES more a record. */
kernel_status kernel_clean_records(const uint8_t *payload, size_t size, int64_t records_count, int64_t base_offset,
                                   int64_t last_offset_delta, const offset_map *map,
                                   const batch_versions *versions, bool drop_tombstones, int64_t timestamp_shift,
                                   judged_record *judged, uint8_t *target, kept_records *kept);

#endif
