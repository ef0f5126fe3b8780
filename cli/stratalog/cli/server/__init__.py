"""Commands that start a server, show its settings and try them."""
