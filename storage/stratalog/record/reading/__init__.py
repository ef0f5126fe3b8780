"""Batches become records and columns, in portions of bounded size."""
