"""The calls of the synchronous client are what the asynchronous classes give today."""

from __future__ import annotations

from sync_client import ROOT, generated


def test_calls_of_the_synchronous_client_are_current() -> None:
    stale = [str(path) for path, text in generated().items() if (ROOT / path).read_text() != text]

    assert stale == [], "run make sync-client, and commit what it writes"
