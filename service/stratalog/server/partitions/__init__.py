"""Partitions that this server hosts."""
