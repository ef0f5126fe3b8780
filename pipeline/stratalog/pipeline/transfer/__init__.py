"""Topics as files and back: exports to Parquet, imports of them, and topics that begin with a table."""
