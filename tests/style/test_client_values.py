"""The values of the client are what the .proto files give today."""

from __future__ import annotations

from client_values import FOLDER, ROOT, generated


def test_values_of_the_client_are_current() -> None:
    texts = generated()
    stale = [str(path) for path, text in texts.items() if (ROOT / path).read_text() != text]

    assert stale == [], "run make proto, and commit what it writes"
    assert {path.name for path in (ROOT / FOLDER).glob("*_values.py")} <= {path.name for path in texts}
