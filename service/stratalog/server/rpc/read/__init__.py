"""Reads of plain records: fetched batches become responses."""
