"""`python -m stratalog.cli` is the `stratalog` command."""

from stratalog.cli.main import main

if __name__ == "__main__":
    main()
