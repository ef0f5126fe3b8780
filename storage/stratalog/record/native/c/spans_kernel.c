/* Finds the aborted transactions of a range of offsets in transaction indexes, for the cleaning kernels. */
#include "transactions.h"

#include <stdlib.h>

enum { VERSION_BYTES = 2, ENTRY_BYTES = VERSION_BYTES + 4 * 8 };

static int compare(const void *left, const void *right)
{
    const aborted_span *one = left, *other = right;
    if (one->producer_id != other->producer_id)
        return one->producer_id < other->producer_id ? -1 : 1;
    if (one->first_offset != other->first_offset)
        return one->first_offset < other->first_offset ? -1 : 1;
    return (one->last_offset > other->last_offset) - (one->last_offset < other->last_offset);
}

size_t kernel_aborted_spans(const uint8_t *entries, size_t count, int64_t start_offset, int64_t end_offset,
                            aborted_span *spans)
{
    size_t found = 0;
    for (size_t index = 0; index < count; index++) {
        const uint8_t *entry = entries + index * ENTRY_BYTES + VERSION_BYTES;
        const aborted_span span = {(int64_t)read_be64(entry), (int64_t)read_be64(entry + 8),
                                   (int64_t)read_be64(entry + 16)};
        if (span.first_offset < end_offset && span.last_offset >= start_offset)
            spans[found++] = span;
    }
    qsort(spans, found, sizeof *spans, compare);
    for (size_t index = 1; index < found; index++) {
        const aborted_span *before = &spans[index - 1];
        if (spans[index].producer_id == before->producer_id && spans[index].last_offset < before->last_offset)
            spans[index].last_offset = before->last_offset;
    }
    return found;
}
