"""Jobs of compaction for tests, made by hand."""
