"""Reads of tiered data: caches, read-ahead, and look-ups."""
