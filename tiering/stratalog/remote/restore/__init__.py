"""Rebuilds lost heads from what is left in the bucket, restores earlier states, and checks the metadata."""
