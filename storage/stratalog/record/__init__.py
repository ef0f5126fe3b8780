"""Record batches, Kafka's format v2: header, records, compression, and the kernels for single records."""
