"""The demonstration: real data through the whole system, checked against an independent computation."""
