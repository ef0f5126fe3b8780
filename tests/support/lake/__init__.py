"""Tables for analysts in tests: their expected rows, and runs without Spark."""
