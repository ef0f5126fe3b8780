"""Spans of calls and of the requests to the store below them, by OpenTelemetry."""
