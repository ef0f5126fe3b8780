"""Servers for tests, in a process of their own or in the test's event loop."""
