"""`stratalog log dump`: a codec for each kind of file yields rows, and a printer shows them."""
