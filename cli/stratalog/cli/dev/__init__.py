"""Servers for development: local stores with the API of S3."""
