"""The metrics for Prometheus: snapshots of the components, one family a module, and their HTTP endpoint."""
