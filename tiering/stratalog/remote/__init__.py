"""The tiered half of a log: object files, the metadata log that tells which are live, upload, remote reads,
retention.
"""
