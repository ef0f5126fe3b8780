"""The proof that compacted partitions are as the metadata log says, from the objects alone."""
