"""Tables of the formats of others: how they are read, how rows die in them, and how they are committed."""
