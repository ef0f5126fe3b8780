"""Phase 1 of a compaction: the keys of slices, and the records that stay."""
