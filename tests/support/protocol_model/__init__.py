"""The explicit-state model of a shard's metadata protocol, docs/metadata_protocol.md."""
