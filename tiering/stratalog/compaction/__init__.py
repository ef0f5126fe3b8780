"""Compaction of tiered logs: which objects to rewrite, and rewriting them with two requests an input."""
