"""Everything at once on real logs: producers, readers, the cleaner, retention and moves, until time is up."""
