"""Appends to a log: validation, offsets, group writes and flushes."""
