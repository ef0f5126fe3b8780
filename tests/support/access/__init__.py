"""Doubles of those who come in: certificates, and a server with principals."""
