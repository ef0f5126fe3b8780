"""`stratalog log dump`: prints the files of a log."""
