"""The actors of the model: each is a function from a state to its possible next steps."""
