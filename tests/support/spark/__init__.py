"""Stores and readers for tests of the Spark source."""
