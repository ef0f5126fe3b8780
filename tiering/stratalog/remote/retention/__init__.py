"""Retention over all tiers: the rules, and the moves of log starts."""
