"""Commands that work on a store without a server."""
