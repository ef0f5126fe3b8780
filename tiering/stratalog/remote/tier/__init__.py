"""Work between disk and object store: upload, retention and collection."""
