/* Loads from the columns of key entries, which may lie at any address. */
#ifndef STRATALOG_KEY_COLUMN_H
#define STRATALOG_KEY_COLUMN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t load64(const uint8_t *column, size_t index)
{
    uint64_t word;
    memcpy(&word, column + index * sizeof word, sizeof word);
    return word;
}

static inline uint32_t load32(const uint8_t *column, size_t index)
{
    uint32_t word;
    memcpy(&word, column + index * sizeof word, sizeof word);
    return word;
}

#endif
