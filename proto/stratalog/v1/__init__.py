"""The wire contract: `log.proto` and `admin.proto`, and the stubs that `scripts/generate_stubs.sh` makes of them."""
