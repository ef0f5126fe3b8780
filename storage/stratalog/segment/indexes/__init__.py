"""The offset, time and transaction indexes of a segment."""
