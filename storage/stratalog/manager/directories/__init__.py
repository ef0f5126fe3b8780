"""Log directories: ownership, checkpoints and disk failures."""
