"""Fetch sessions and their encoding."""
