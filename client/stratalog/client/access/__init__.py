"""Credentials of a client. Knows no calls."""
