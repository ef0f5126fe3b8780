"""The append path: decoding, ordering and one writer for each partition."""
