"""Long work that callers start, watch and cancel."""
