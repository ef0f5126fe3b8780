"""Logs for tests: machines, ledgers, oracles and scenarios."""
