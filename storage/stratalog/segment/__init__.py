"""One log segment: its data file and its sparse indexes, in Kafka's formats."""
