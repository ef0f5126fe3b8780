"""Who may come in, and what for: TLS, tokens, principals, their permissions and quotas. Knows no calls."""
