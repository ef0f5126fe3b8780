"""The object file: its format, writer and reader."""
