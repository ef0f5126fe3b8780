"""Topics of a server, and the background work on their data."""
