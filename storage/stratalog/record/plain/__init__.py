"""Plain records of clients as the records section of a batch."""
