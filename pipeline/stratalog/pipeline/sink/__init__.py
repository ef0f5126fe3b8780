"""The sink of `format("stratalog")`: rows of Spark, appended through the service."""
