"""Object stores for tests: stores that fail, or note their use."""
