"""The planner: it chooses which objects a compaction job rewrites."""
