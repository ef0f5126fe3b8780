"""The data source `stratalog`: topics of the object store as rows, for queries and for streams."""
