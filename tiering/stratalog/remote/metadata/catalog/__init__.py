"""The catalog of topics."""
