/* The second pass of a clean over the records of a batch: judges them, and copies those that stay. */
#ifndef STRATALOG_JUDGING_H
#define STRATALOG_JUDGING_H

#include "offset_map.h"

enum { JUDGED_TOGETHER = 64 };

/* Records whose keys wait to be looked up together. */
typedef struct {
    const offset_map *map;
    size_t count;
    const uint8_t *key[JUDGED_TOGETHER];
    size_t key_size[JUDGED_TOGETHER];
    int64_t offset[JUDGED_TOGETHER];
    int64_t version[JUDGED_TOGETHER];
    judged_record *record[JUDGED_TOGETHER];
    bool is_due[JUDGED_TOGETHER]; /* the horizon of the batch has passed */
} judging;

/* Judges the records of a payload, by their `versions` if the map has some; those that wait have their fates after `kernel_judge_waiting`. */
kernel_status kernel_judge_payload(judging *judge, const uint8_t *payload, size_t size, int64_t records_count,
                                   int64_t base_offset, int64_t last_offset_delta, const batch_versions *versions,
                                   bool is_due, judged_record *judged);
void kernel_judge_waiting(judging *judge);

/* Counts the records that stay; does not set their size. */
kept_records kernel_count_fates(const judged_record *judged, int64_t records_count);

/* Copies the records of a payload that stay, neighbours together; returns their size. */
size_t kernel_copy_kept(const uint8_t *payload, size_t size, int64_t records_count, const judged_record *judged,
                        uint8_t *target);

/* Copies the records of a payload that stay, with shifted timestamps. */
kernel_status kernel_copy_shifted(const uint8_t *payload, size_t size, int64_t records_count,
                                  const judged_record *judged, int64_t timestamp_shift, uint8_t *target,
                                  size_t *copied_size);

#endif
