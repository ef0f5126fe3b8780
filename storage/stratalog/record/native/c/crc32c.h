/* CRC-32C of bytes, continued from the checksum of the bytes before them (0 at first). See crc32c.c. */
#ifndef STRATALOG_CRC32C_H
#define STRATALOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Chooses the algorithm and makes the tables. Call it once, before the first checksum. */
void kernel_crc32c_begin(void);

uint32_t kernel_crc32c(uint32_t crc, const uint8_t *data, size_t size);

/* The checksum of bytes that have `crc`, followed by `next_size` bytes that have `next_crc`. */
uint32_t kernel_joined_crc(uint32_t crc, uint32_t next_crc, size_t next_size);

/* The algorithms of lesser processors, with tables alone or without folding: for tests. */
uint32_t kernel_crc32c_by_tables(uint32_t crc, const uint8_t *data, size_t size);
uint32_t kernel_crc32c_by_lanes(uint32_t crc, const uint8_t *data, size_t size);

#endif
