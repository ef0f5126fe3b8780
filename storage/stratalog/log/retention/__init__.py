"""Removal of data from a log: retention, truncation and deferred deletion."""
