"""Per-record and per-batch kernels: the compiled module, its plain reference, and their value types."""
