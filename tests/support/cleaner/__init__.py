"""The local cleaner for tests: its oracle, histories and machines."""
