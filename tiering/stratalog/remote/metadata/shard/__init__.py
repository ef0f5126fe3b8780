"""The metadata log of a shard: its actions, its state and its judges."""
