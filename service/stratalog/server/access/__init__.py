"""Access to the server: TLS, tokens, principals, their permissions and quotas. Knows no calls."""
