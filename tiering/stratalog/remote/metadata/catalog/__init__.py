"""The catalog of topics with their fencing tokens, of the server's configuration, and of producer ids."""
