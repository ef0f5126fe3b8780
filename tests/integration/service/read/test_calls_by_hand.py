"""The calls of docs/calls_by_hand.md, in its order: by grpcurl if there is one, and on grpcio in any case."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tests.support.places import DOCS
from tests.support.service.grpcurl_line import (
    Output,
    documents_of,
    grpcurl_binary,
    interpret,
    run_grpcurl,
)
from tests.support.service.service_bench import service_bench

BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "localhost:9190"


class Example(NamedTuple):
    """A command line, and the output that the document shows."""

    line: str
    documents: list[dict[str, Any]]
    text: str


def examples() -> list[Example]:
    found: list[Example] = []
    for kind, text in BLOCK.findall((DOCS / "calls_by_hand.md").read_text()):
        if kind == "sh":
            found.append(Example(text, [], ""))
        elif kind == "json":
            found[-1] = found[-1]._replace(documents=documents_of(text))
        else:
            found[-1] = found[-1]._replace(text=text)
    return found


def is_part(shown: Any, whole: Any) -> bool:
    """Whether all that is shown is in the whole: fields may be missing, elements of lists may not."""
    if isinstance(shown, dict):
        fields = cast(dict[str, Any], shown)
        return all(name in whole and is_part(value, whole[name]) for name, value in fields.items())
    if isinstance(shown, list):
        elements = cast(Sequence[Any], shown)
        return len(elements) == len(whole) and all(map(is_part, elements, whole))
    return bool(shown == whole)


@pytest.fixture(params=["grpcio", "grpcurl"])
def run(request: pytest.FixtureRequest) -> Callable[[str], Output]:
    if request.param == "grpcio":
        return interpret
    binary = grpcurl_binary()
    if binary is None:
        pytest.skip(
            "no `grpcurl`:"
            " GOBIN=$PWD/.cache/bin go install github.com/fullstorydev/grpcurl/cmd/grpcurl@latest"
        )
    return partial(run_grpcurl, binary)


async def test_every_call_by_hand_gives_what_the_document_shows(
    tmp_path: Path, run: Callable[[str], Output]
) -> None:
    calls = examples()
    assert len(calls) == 10
    async with service_bench(tmp_path) as bench:
        for call in calls:
            assert ADDRESS in call.line
            output = await asyncio.to_thread(run, call.line.replace(ADDRESS, bench.client.address))
            # A read that follows may send any number of heartbeats.
            documents = output.documents[: len(call.documents)] if "follow" in call.line else output.documents
            assert is_part(call.documents, documents), (call, output)
            is_described = " describe " in call.line
            assert output.text == call.text or is_described, (call, output)
            assert bool(output.text) or documents


def test_fields_may_be_left_out_of_the_document_and_elements_may_not() -> None:
    whole = [{"a": 1, "b": [{"c": 2}, {}]}]
    assert is_part([{"b": [{}, {}]}], whole)
    assert not is_part([{"b": [{}]}], whole)
    assert not is_part([{"b": [{}, {"c": 2}]}], whole)
    assert not is_part([{"a": 2}], whole)
    assert not is_part([], whole)
