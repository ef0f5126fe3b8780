"""The metadata log: the head, a shard's log, the catalog of topics, and ownership."""
