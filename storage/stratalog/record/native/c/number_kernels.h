/* The kernels for columns of numbers. number_columns.py documents them. All are safe on any bytes and numbers. */
#ifndef STRATALOG_NUMBER_KERNELS_H
#define STRATALOG_NUMBER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_TEXT_BYTES = 21 }; /* of the longest number and a comma */

/* Writes a JSON list; `target` has room for NUMBER_TEXT_BYTES a number and 2 more. Returns the size. */
size_t kernel_format_numbers(const int64_t *numbers, size_t count, uint8_t *target);

/* Returns whether the text is a JSON list, without white space, of exactly `count` numbers that fit. */
bool kernel_parse_numbers(const uint8_t *text, size_t size, int64_t *numbers, size_t count);

/* The following return false if a result does not fit. Where they take `shift`, it is -1, 0 or 1: row i meets row
 * i + shift of `others`, and 0 outside of the column. */
bool kernel_differences(const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target);
bool kernel_sums(const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target);
bool kernel_running_sums(const int64_t *values, size_t count, int64_t *target);

/* Rows lie behind each other in groups. `ends` has a zero for each group. Also false if a group is not one of them. */
bool kernel_steps_behind(const int64_t *values, const int64_t *groups, const int64_t *sizes, size_t count,
                         int64_t *ends, size_t ends_count, int64_t *target);
bool kernel_places_behind(const int64_t *steps, const int64_t *groups, const int64_t *sizes, size_t count,
                          int64_t *ends, size_t ends_count, int64_t *target);

#endif
