"""Apache Kafka's own programs and brokers for tests."""
