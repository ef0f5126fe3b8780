"""One clean of one log: both passes over its segments."""
