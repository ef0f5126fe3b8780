"""The head of a metadata log: commits, folds, checkpoints and history."""
