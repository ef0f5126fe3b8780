"""The `stratalog` command. Each subcommand lives in a module of its own, imported when it runs."""
