"""The synchronous client: the names of the asynchronous one, for threads without an event loop."""
