"""Partition directories: metadata files, deletion, strays and losses."""
