"""Deterministic simulation: actors that share one store, interleaved request by request under a seed."""
