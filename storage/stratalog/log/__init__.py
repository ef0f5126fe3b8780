"""The log of one partition, its recovery, and the directory that holds the logs of all partitions."""
