"""Processes that execute the jobs of compaction beside the server."""
