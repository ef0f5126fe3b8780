/* Checks UTF-8 like Python's strict decoder: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef STRATALOG_UTF8_H
#define STRATALOG_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The size of the well-formed sequence at `text`, which has `size` bytes; 0 if it is malformed. */
static inline size_t utf8_sequence_size(const uint8_t *text, size_t size)
{
    uint8_t lead = text[0];
    uint8_t second_min = 0x80, second_max = 0xbf;
    size_t sequence_size;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf) {
        sequence_size = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        sequence_size = 3;
        if (lead == 0xe0)
            second_min = 0xa0; /* less would be overlong */
        if (lead == 0xed)
            second_max = 0x9f; /* more would be a surrogate */
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        sequence_size = 4;
        if (lead == 0xf0)
            second_min = 0x90; /* less would be overlong */
        if (lead == 0xf4)
            second_max = 0x8f; /* more would be above U+10FFFF */
    } else {
        return 0;
    }
    if (size < sequence_size || text[1] < second_min || text[1] > second_max)
        return 0;
    for (size_t index = 2; index < sequence_size; index++)
        if ((text[index] & 0xc0) != 0x80)
            return 0;
    return sequence_size;
}

static inline bool is_utf8(const uint8_t *text, size_t size)
{
    while (size > 0) {
        uint64_t word;
        size_t sequence_size;
        if (size >= sizeof word) {
            memcpy(&word, text, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                text += sizeof word;
                size -= sizeof word;
                continue;
            }
        }
        sequence_size = utf8_sequence_size(text, size);
        if (sequence_size == 0)
            return false;
        text += sequence_size;
        size -= sequence_size;
    }
    return true;
}

#endif
