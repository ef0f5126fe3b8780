"""The way of a producer's batches to the server: sealed, in order, once."""
