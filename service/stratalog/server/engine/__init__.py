"""The engine of a server: the open components below the servicers, and how they are opened."""
