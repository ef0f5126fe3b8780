"""Shared parts of tests: oracles, machines, servers and histories."""
