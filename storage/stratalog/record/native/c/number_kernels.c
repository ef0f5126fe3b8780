/* Columns of numbers: their text, and differences from the numbers that one expects. */
#include "number_kernels.h"

enum { MAX_DIGITS = 19 }; /* of a number that fits, and no number of so many digits exceeds 64 bits */

static uint8_t *write_number(int64_t number, uint8_t *target)
{
    uint8_t digits[MAX_DIGITS];
    size_t count = 0;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do {
        digits[count++] = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left != 0);
    if (number < 0)
        *target++ = '-';
    while (count > 0)
        *target++ = digits[--count];
    return target;
}

size_t kernel_format_numbers(const int64_t *numbers, size_t count, uint8_t *target)
{
    uint8_t *position = target;
    *position++ = '[';
    for (size_t index = 0; index < count; index++) {
        if (index > 0)
            *position++ = ',';
        position = write_number(numbers[index], position);
    }
    *position++ = ']';
    return (size_t)(position - target);
}

/* Reads the number at `position`; returns its end, NULL if there is none that fits. */
static const uint8_t *read_number(const uint8_t *position, const uint8_t *end, int64_t *number)
{
    const bool is_negative = position < end && *position == '-';
    const uint8_t *const first = position + is_negative;
    uint64_t size = 0;
    for (position = first; position < end && *position >= '0' && *position <= '9'; position++)
        size = size * 10 + (uint64_t)(*position - '0');
    if (position == first || position - first > MAX_DIGITS)
        return NULL;
    if (*first == '0' && (is_negative || position - first > 1))
        return NULL;
    if (size > (uint64_t)INT64_MAX + is_negative)
        return NULL;
    *number = is_negative ? -(int64_t)(size - 1) - 1 : (int64_t)size;
    return position;
}

bool kernel_parse_numbers(const uint8_t *text, size_t size, int64_t *numbers, size_t count)
{
    const uint8_t *position = text;
    const uint8_t *const end = text + size;
    if (size == 0 || count == 0 || *position++ != '[')
        return false;
    for (size_t index = 0; index < count; index++) {
        position = read_number(position, end, &numbers[index]);
        if (position == NULL || position == end || *position++ != (index + 1 < count ? ',' : ']'))
            return false;
    }
    return position == end;
}

/* The number that row `index` meets. */
static inline int64_t shifted(const int64_t *others, size_t count, size_t index, int shift)
{
    if (shift < 0)
        return index > 0 ? others[index - 1] : 0;
    if (shift > 0)
        return index + 1 < count ? others[index + 1] : 0;
    return others[index];
}

bool kernel_differences(const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target)
{
    bool overflows = false;
    for (size_t index = 0; index < count; index++)
        overflows |= __builtin_sub_overflow(values[index], shifted(others, count, index, shift), &target[index]);
    return !overflows;
}

bool kernel_sums(const int64_t *values, const int64_t *others, size_t count, int shift, int64_t *target)
{
    bool overflows = false;
    for (size_t index = 0; index < count; index++)
        overflows |= __builtin_add_overflow(values[index], shifted(others, count, index, shift), &target[index]);
    return !overflows;
}

bool kernel_running_sums(const int64_t *values, size_t count, int64_t *target)
{
    bool overflows = false;
    int64_t sum = 0;
    for (size_t index = 0; index < count; index++) {
        overflows |= __builtin_add_overflow(sum, values[index], &sum);
        target[index] = sum;
    }
    return !overflows;
}

bool kernel_steps_behind(const int64_t *values, const int64_t *groups, const int64_t *sizes, size_t count,
                         int64_t *ends, size_t ends_count, int64_t *target)
{
    for (size_t index = 0; index < count; index++) {
        const uint64_t group = (uint64_t)groups[index];
        if (group >= ends_count || __builtin_sub_overflow(values[index], ends[group], &target[index]) ||
            __builtin_add_overflow(values[index], sizes[index], &ends[group]))
            return false;
    }
    return true;
}

bool kernel_places_behind(const int64_t *steps, const int64_t *groups, const int64_t *sizes, size_t count,
                          int64_t *ends, size_t ends_count, int64_t *target)
{
    for (size_t index = 0; index < count; index++) {
        const uint64_t group = (uint64_t)groups[index];
        if (group >= ends_count || __builtin_add_overflow(steps[index], ends[group], &target[index]) ||
            __builtin_add_overflow(target[index], sizes[index], &ends[group]))
            return false;
    }
    return true;
}
