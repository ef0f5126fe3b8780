/* Hashes of a column of keys, as Arrow lays it out. pipeline/lake/key_hashes.py documents them. */
#ifndef STRATALOG_KEY_COLUMN_HASHES_H
#define STRATALOG_KEY_COLUMN_HASHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes `count` hashes. Key i lies in `data` from bound i to bound i + 1; the bounds are signed numbers of 32 bits, or
 * of 64 if they are wide, at any address. A key of more than `max_size` bytes counts as hash 0 before its partition is
 * mixed in, and `long_count` says how many these are. Returns whether all bounds rise and lie in the data. */
bool kernel_hash_key_column(const uint8_t *bounds, bool is_wide, const uint8_t *data, size_t size,
                            const int32_t *partitions, size_t count, size_t max_size, uint64_t *hashes,
                            size_t *long_count);

#endif
