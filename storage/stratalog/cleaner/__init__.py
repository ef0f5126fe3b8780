"""Compaction of logs on local disk: which one is cleaned, when, and how it is done."""
