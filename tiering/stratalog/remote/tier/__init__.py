"""Work between disk and object store: upload, reads, retention and collection."""
