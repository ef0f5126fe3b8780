"""Random inputs for the calls of a server, and the judgement of its answers."""
