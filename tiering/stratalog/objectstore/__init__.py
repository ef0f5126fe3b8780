"""Object stores behind one protocol: S3, a local directory, memory, and wrappers."""
