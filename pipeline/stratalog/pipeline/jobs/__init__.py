"""Jobs over a whole store that run on Spark."""
