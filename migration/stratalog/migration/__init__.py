"""Migration of topics: import of a stopped Kafka broker's log directories, and export to one."""
