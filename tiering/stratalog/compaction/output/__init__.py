"""Writes, proves and sends the objects that a compaction job makes."""
