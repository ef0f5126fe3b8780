/* The offset map, and the first pass of a clean, which fills it. */
#include "offset_map.h"

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { BLOCK_RECORDS = 64 };

/* A large map has its own pages, and large ones if the system has them, because look-ups touch all parts of it. */
static const size_t OWN_PAGES_BYTES = (size_t)4 << 20;

static size_t slots_bytes(const offset_map *map)
{
    return map->slots_count * sizeof(map_slot);
}

bool kernel_map_begin(offset_map *map, const uint8_t *hash_key16, uint64_t capacity, uint64_t max_entries,
                      const batch_versions *rule)
{
    *map = (offset_map){.slots_count = capacity + 1, .max_entries = max_entries, .latest_offset = -1};
    memcpy(map->hash_key, hash_key16, HASH_KEY_BYTES);
    if (rule != NULL) {
        map->rule = *rule;
        map->versions = calloc(map->slots_count, sizeof *map->versions);
        if (map->versions == NULL)
            return false;
    }
#if defined(__linux__)
    if (slots_bytes(map) >= OWN_PAGES_BYTES) {
        void *pages = mmap(NULL, slots_bytes(map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED)
            return false;
        madvise(pages, slots_bytes(map), MADV_HUGEPAGE);
        map->slots = pages;
        return true;
    }
#endif
    map->slots = calloc(map->slots_count, sizeof(map_slot));
    return map->slots != NULL;
}

void kernel_map_end(offset_map *map)
{
    free(map->versions);
    map->versions = NULL;
    if (map->slots == NULL)
        return;
#if defined(__linux__)
    if (slots_bytes(map) >= OWN_PAGES_BYTES)
        munmap(map->slots, slots_bytes(map));
    else
#endif
        free(map->slots);
    map->slots = NULL;
}

/* The rest of a look-up that has reached the ring's end. Keys from the end may lie at the front, before the keys that
 * are at home there. */
static map_place seek_from_front(const offset_map *map, uint64_t high, uint64_t low)
{
    for (uint64_t index = 0; index < map->slots_count; index++) {
        const map_slot *slot = &map->slots[index];
        if (slot->next_offset == 0 || home_of(map, slot->high) <= index || slot->high > high)
            return (map_place){index, false};
        if (slot->high == high && slot->low == low)
            return (map_place){index, true};
    }
    return (map_place){0, false};
}

map_place kernel_map_seek(const offset_map *map, uint64_t home, uint64_t high, uint64_t low)
{
    for (uint64_t index = home; index < map->slots_count; index++) {
        const map_slot *slot = &map->slots[index];
        if (slot->next_offset == 0)
            return (map_place){index, false};
        if (slot->high == high && slot->low == low)
            return (map_place){index, true};
        /* At the front of the ring, higher keys from its end may lie before those that are at home. */
        if (slot->high > high && home_of(map, slot->high) <= index)
            return (map_place){index, false};
    }
    return seek_from_front(map, high, low);
}

int64_t kernel_map_get(const offset_map *map, const uint8_t *key, size_t size)
{
    uint64_t high, low;
    map_place place;
    kernel_siphash128(map->hash_key, key, size, &high, &low);
    place = kernel_map_seek(map, home_of(map, high), high, low);
    return place.is_found ? (int64_t)(map->slots[place.index].next_offset - 1) : -1;
}

/* The distance of a slot from the home of its key. */
static uint64_t distance_at(const offset_map *map, uint64_t index)
{
    const uint64_t home = home_of(map, map->slots[index].high);
    return index >= home ? index - home : index + map->slots_count - home;
}

bool kernel_map_check(const offset_map *map)
{
    uint64_t count = 0;
    for (uint64_t index = 0; index < map->slots_count; index++) {
        const map_slot *slot = &map->slots[index], *before = &map->slots[(index > 0 ? index : map->slots_count) - 1];
        uint64_t distance;
        if (slot->next_offset == 0)
            continue;
        distance = distance_at(map, index);
        count++;
        /* A key after an empty slot is at home; a key after another one is not below it. */
        if (distance > 0 && (before->next_offset == 0 ||
                             distance > distance_at(map, (index > 0 ? index : map->slots_count) - 1) + 1 ||
                             (home_of(map, before->high) == home_of(map, slot->high) && before->high > slot->high)))
            return false;
    }
    return count == map->count && count <= map->max_entries && count < map->slots_count;
}

static void move_up(offset_map *map, uint64_t first, uint64_t end)
{
    map_slot *slots = map->slots;
    memmove(slots + first + 1, slots + first, (end - first) * sizeof *slots);
    if (map->versions != NULL)
        memmove(map->versions + first + 1, map->versions + first, (end - first) * sizeof *map->versions);
}

/* Puts a key at its place; the keys from there to the next empty slot move up. */
static void insert(offset_map *map, uint64_t index, const map_slot *slot, int64_t version)
{
    map_slot *slots = map->slots;
    const uint64_t last = map->slots_count - 1;
    uint64_t empty = index;
    while (empty <= last && slots[empty].next_offset != 0)
        empty++;
    if (empty <= last) {
        move_up(map, index, empty);
    } else {
        for (empty = 0; empty < index && slots[empty].next_offset != 0;)
            empty++;
        move_up(map, 0, empty);
        slots[0] = slots[last];
        if (map->versions != NULL)
            map->versions[0] = map->versions[last];
        move_up(map, index, last);
    }
    slots[index] = *slot;
    if (map->versions != NULL)
        map->versions[index] = version;
    map->count++;
}

/* Records that wait to be put together, and the state of the walk before each: the batches that were taken, and the
 * offset up to which everything was seen. */
typedef struct {
    offset_map *map;
    put_result *result;
    int64_t first_offset;
    int64_t latest_offset;
    size_t count;
    const uint8_t *key[BLOCK_RECORDS];
    size_t key_size[BLOCK_RECORDS];
    int64_t offset[BLOCK_RECORDS];
    int64_t version[BLOCK_RECORDS];
    int64_t latest_before[BLOCK_RECORDS];
    size_t batch_position[BLOCK_RECORDS];
    int64_t batch_next_offset[BLOCK_RECORDS];
    bool has_key[BLOCK_RECORDS];
} putting;

/* A record without a key: another key is hashed in its place, so that all waiting records are alike. */
static void wait_without_key(putting *put)
{
    const size_t index = put->count;
    put->key[index] = index > 0 ? put->key[index - 1] : put->map->hash_key;
    put->key_size[index] = index > 0 ? put->key_size[index - 1] : 0;
    put->has_key[index] = false;
}

/* Stops at a waiting record whose key has no room in the map. */
static void stop_full(putting *put, size_t index)
{
    put->map->is_full = true;
    put->latest_offset = put->latest_before[index];
    put->result->end_position = put->batch_position[index];
    put->result->next_offset = put->batch_next_offset[index];
}

/* Puts the waiting records; false if the map is full. */
static bool put_waiting(putting *put)
{
    offset_map *map = put->map;
    const size_t count = put->count;
    uint64_t high[BLOCK_RECORDS], low[BLOCK_RECORDS], home[BLOCK_RECORDS];
    put->count = 0;
    kernel_siphash128_each(map->hash_key, put->key, put->key_size, count, high, low);
    for (size_t index = 0; index < count; index++) {
        home[index] = home_of(map, high[index]);
        prefetch_home(map, home[index]);
    }
    for (size_t index = 0; index < count; index++) {
        const uint64_t next_offset = (uint64_t)put->offset[index] + 1;
        if (!put->has_key[index])
            continue;
        map_place place = kernel_map_seek(map, home[index], high[index], low[index]);
        if (LIKELY(place.is_found)) {
            if (is_above(map, place.index, put->version[index], next_offset)) {
                map->slots[place.index].next_offset = next_offset;
                if (map->versions != NULL)
                    map->versions[place.index] = put->version[index];
            }
        } else if (map->is_closed) {
            continue;
        } else if (map->count < map->max_entries) {
            insert(map, place.index, &(map_slot){high[index], low[index], next_offset}, put->version[index]);
        } else {
            stop_full(put, index);
            return false;
        }
    }
    return true;
}

/* Puts the records of a payload, or lets them wait. The map may be full even if the result is KERNEL_OK. */
static kernel_status put_payload(putting *put, const uint8_t *payload, size_t size, int64_t records_count,
                                 int64_t base_offset, int64_t last_offset_delta, const batch_versions *versions)
{
    const size_t batch_position = put->result->end_position;
    const int64_t batch_next_offset = put->result->next_offset;
    record_walk walk;
    record_frame frame;
    if (!walk_begin(&walk, payload, size, records_count))
        return KERNEL_BAD_FRAME;
    while (walk.left_count > 0) {
        const size_t index = put->count;
        if (UNLIKELY(!walk_next(&walk, &frame)))
            return KERNEL_BAD_FRAME;
        if (UNLIKELY(frame.offset_delta > last_offset_delta || frame.offset_delta > INT64_MAX - base_offset))
            return KERNEL_BAD_OFFSET;
        if (base_offset + frame.offset_delta < put->first_offset)
            continue;
        if (put->map->is_closed && base_offset + frame.offset_delta > put->map->latest_offset)
            continue;
        put->offset[index] = base_offset + frame.offset_delta;
        put->version[index] = 0;
        if (versions != NULL) {
            const kernel_status status = version_of(versions, &frame, &put->version[index]);
            if (UNLIKELY(status != KERNEL_OK))
                return status;
        }
        put->latest_before[index] = put->latest_offset;
        put->batch_position[index] = batch_position;
        put->batch_next_offset[index] = batch_next_offset;
        put->key[index] = frame.key;
        put->key_size[index] = (size_t)frame.key_size;
        put->has_key[index] = true;
        if (UNLIKELY(frame.key_size < 0))
            wait_without_key(put);
        if (put->latest_offset < put->offset[index])
            put->latest_offset = put->offset[index];
        if (++put->count == BLOCK_RECORDS && !put_waiting(put))
            return KERNEL_OK;
    }
    return walk_end(&walk) ? KERNEL_OK : KERNEL_BAD_FRAME;
}

static void end_put(putting *put)
{
    if (!put->map->is_full)
        put_waiting(put);
    if (!put->map->is_closed && put->map->latest_offset < put->latest_offset)
        put->map->latest_offset = put->latest_offset;
}

kernel_status kernel_put_records(offset_map *map, const uint8_t *payload, size_t size, int64_t records_count,
                                 int64_t base_offset, int64_t first_offset, int64_t last_offset_delta,
                                 const batch_versions *versions)
{
    put_result result = {.next_offset = -1};
    putting put = {.map = map, .result = &result, .first_offset = first_offset, .latest_offset = map->latest_offset};
    kernel_status status;
    if (map->is_full)
        return KERNEL_OK;
    status = put_payload(&put, payload, size, records_count, base_offset, last_offset_delta, versions);
    end_put(&put);
    return map->is_full ? KERNEL_OK : status;
}

void kernel_put_batches(offset_map *map, const uint8_t *data, size_t size, int64_t first_offset, int64_t stop_offset,
                        const aborted_spans *aborted, put_result *result)
{
    putting put = {.map = map, .result = result, .first_offset = first_offset, .latest_offset = map->latest_offset};
    batch_frame batch;
    batch_versions versions;
    size_t position = 0;
    *result = (put_result){.next_offset = -1};
    if (map->is_full)
        return;
    while (batch_at(data + position, size - position, &batch)) {
        const batch_kind kind = kind_of(&batch, stop_offset - 1, aborted);
        if (kind == BATCH_NOT_TAKEN || !has_true_crc(&batch))
            break;
        if (map->versions != NULL)
            versions = versions_in(&map->rule, &batch);
        if (kind == BATCH_OF_RECORDS &&
            (put_payload(&put, records_of(&batch), records_bytes(&batch), batch.records_count, batch.base_offset,
                         batch.last_offset_delta, map->versions == NULL ? NULL : &versions) != KERNEL_OK ||
             map->is_full))
            break;
        position += batch.size;
        result->end_position = position;
        result->next_offset = batch.next_offset;
        if (put.latest_offset < batch.next_offset - 1)
            put.latest_offset = batch.next_offset - 1;
    }
    end_put(&put);
}
