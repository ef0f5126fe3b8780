"""Consuming: positions, the session that follows a topic, and records, tables and Arrow columns out of it."""
