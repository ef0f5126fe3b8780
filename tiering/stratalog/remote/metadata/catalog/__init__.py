"""The catalog of topics, of the server's configuration, and of the producer ids that are taken."""
