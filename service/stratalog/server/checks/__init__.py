"""Checks of a start: addresses, directories, the store and the machine, before anything is served."""
