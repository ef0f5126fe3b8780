"""The gate before all calls: each is authenticated, authorised and charged to the quota of its principal."""
