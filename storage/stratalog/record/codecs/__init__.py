"""Compression codecs, as Kafka's clients write and read them."""
