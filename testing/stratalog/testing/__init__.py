"""Shipped test doubles and contracts: clocks, file systems and stores under a test's control."""
