"""Tiered logs for tests: stores, shards, oracles and S3 servers."""
