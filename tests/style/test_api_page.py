"""docs/api.md is what the .proto files give today."""

from __future__ import annotations

from api_page import PAGE, page
from proto_files import compiled, own_files


def test_the_page_of_the_api_is_current() -> None:
    assert PAGE.read_text() == page(own_files(compiled())), "run make proto, and commit what it writes"
