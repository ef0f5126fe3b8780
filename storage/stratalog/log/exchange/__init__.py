"""Replacement and copying of segments while a log is in use."""
