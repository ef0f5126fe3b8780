"""Counts what the server does, where it is done. `metrics` exports the counts."""
