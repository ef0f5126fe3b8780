"""The catalog of topics, and of the server's configuration."""
