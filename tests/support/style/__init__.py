"""Support of the tests of style."""
