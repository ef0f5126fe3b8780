"""The latest state of topics as tables for analysts: Parquet, Delta Lake and Apache Iceberg."""
