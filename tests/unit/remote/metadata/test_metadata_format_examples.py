"""docs/formats/metadata.md shows a store's files as they are, all of them."""

from __future__ import annotations

import json
import re

import pytest
import zstandard

from stratalog.remote.json_document import COMPRESSED_ABOVE_BYTES, format_json
from stratalog.remote.metadata.catalog.catalog_actions import CATALOG_ACTIONS
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.store_identity import StoreIdentity
from tests.support.places import DOCS
from tests.support.tiered.metadata_example import example_store
from tests.support.tiered.shard_states import stored_state

DOCUMENT = DOCS / "formats" / "metadata.md"
EXAMPLES = dict(
    re.findall(r"^`([^`\n]+)`:\n\n```json\n(.*?)\n```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
)


def stored_text(data: bytes) -> str:
    if data.startswith(b"{"):
        assert len(data) <= COMPRESSED_ABOVE_BYTES
        return data.decode()
    return zstandard.ZstdDecompressor().decompress(data).decode()


def compact(text: str) -> str:
    """The JSON values of the text without white space; in a file of several values each is a line."""
    decoder, values, at = json.JSONDecoder(), list[str](), 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        values.append(format_json(value))
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return "\n".join(values)


def test_all_files_are_shown() -> None:
    keys = [found.key for found in example_store().store.list("")]
    assert sorted(EXAMPLES) == sorted(keys)


@pytest.mark.parametrize("key", EXAMPLES)
def test_a_file_is_shown_as_it_is(key: str) -> None:
    stored = stored_text(example_store().store.get(key).data)
    assert compact(EXAMPLES[key]) == stored, "the order of fields included"


def test_the_examples_can_be_read() -> None:
    """From the document's text alone, not from what was written a moment ago."""
    harness = example_store()
    for key, text in EXAMPLES.items():
        harness.store.put(key, compact(text).encode())
    assert StoreIdentity.open(harness.store) == harness.identity
    head = harness.head()
    assert (head.seq, head.folded_seq) == (18, 6)
    assert head.checkpoint is not None
    state = stored_state(harness.store, harness.layout, head.checkpoint)
    state.check()
    assert len(state.partitions) == len(state.objects) == 2
    catalog = harness.catalog(read_only=True)
    assert [(topic.name, topic.partition_count) for topic in catalog.topics().values()] == [("flights", 3)]
    assert catalog.state().server_config == {"log.retention.ms": "-1"}
    assert catalog.state().next_producer_id == 1000
    assert catalog.topics()["flights"].fencing_tokens == {2: "writer-7"}
    head = Head.decode(compact(EXAMPLES["catalog/head"]).encode(), "catalog/head", CATALOG_ACTIONS)
    assert head.seq == 7


def test_every_action_is_shown_and_described() -> None:
    text = DOCUMENT.read_text()
    for action in {*SHARD_ACTIONS, *CATALOG_ACTIONS}:
        assert f'"action": "{action}"' in text, f"no example of {action}"
        assert f"`{action}`" in text, f"no description of {action}"
