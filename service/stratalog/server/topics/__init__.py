"""Topics of a server: the catalog says which exist, and their logs follow it."""
