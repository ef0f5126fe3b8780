"""The Python client: asynchronous first, with a thin synchronous face. Imports nothing of the server."""
