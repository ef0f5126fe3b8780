"""Commands that repair a store: they work on its URL, without a server."""
