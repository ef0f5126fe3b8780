"""The object file: its format, writer, reader and verifier."""
