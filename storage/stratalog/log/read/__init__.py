"""Reads of a log: by offset, by time and by isolation level."""
