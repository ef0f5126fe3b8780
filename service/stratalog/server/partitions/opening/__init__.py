"""The opening of the logs of partitions, at a start and of new topics."""
