"""Ownership of a shard: claims and takeover."""
