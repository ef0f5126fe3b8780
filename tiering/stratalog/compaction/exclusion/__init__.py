"""The partitions that compaction leaves alone, on the local disk."""
