"""The control plane over gRPC: topics, partitions, tiers and operations."""
