"""How the values of a topic become columns."""
