"""Partitions that this server hosts, and how they open."""
