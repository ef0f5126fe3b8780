"""`stratalog spark`: jobs over a whole store that run on Spark."""
