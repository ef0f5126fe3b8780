"""Records in lines of text: their JSON, and the input of a command."""
