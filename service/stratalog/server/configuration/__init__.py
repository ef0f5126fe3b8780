"""Configuration of the server and of its topics."""
