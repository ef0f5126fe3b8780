"""Loading a partition directory and recovering it after a crash."""
