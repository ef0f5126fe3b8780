"""A client in another language, generated from the .proto files alone: `go_client/main.go`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.record.key_partition import partition_for_key
from tests.support.places import REPOSITORY
from tests.support.service.go_client import GoMissingError, built_go_client
from tests.support.service.service_bench import ServiceBench

# Without modules in the cache, Go fetches and compiles gRPC first.
pytestmark = pytest.mark.timeout(600)

PARTITION_COUNT = 3
STREAM_COUNT = 1000
"""The appends of the stream in main.go, of which the last one is refused."""

REFUSALS = {
    "unknown_topic": ("NotFound", "UNKNOWN_TOPIC_OR_PARTITION"),
    "other_topic": ("FailedPrecondition", "INCONSISTENT_TOPIC_ID"),
    "unexpected_offset": ("Aborted", "UNEXPECTED_OFFSET"),
    "invented_producer": ("FailedPrecondition", "UNKNOWN_PRODUCER_ID"),
    "other_token": ("FailedPrecondition", "FENCING_TOKEN_MISMATCH"),
    "no_records": ("InvalidArgument", "INVALID_REQUEST"),
    "out_of_range": ("OutOfRange", "OFFSET_OUT_OF_RANGE"),
}


@pytest.fixture(scope="session")
def go_client() -> Path:
    try:
        return built_go_client(REPOSITORY / ".cache" / "go")
    except GoMissingError as missing:
        pytest.skip(str(missing))


async def test_a_client_in_go_appends_reads_follows_and_is_refused(
    bench: ServiceBench, go_client: Path
) -> None:
    await bench.client.admin.create_topic("from-go", PARTITION_COUNT)

    steps = await run(go_client, bench.client.address, "from-go")

    described = steps["describe"]
    assert described["partition_count"] == PARTITION_COUNT
    assert described["endpoints"] == [bench.client.address]
    assert steps["append"] == {
        "step": "append",
        "base_offset": 0,
        "last_offset": 1,
        "duplicate": False,
        "again_base_offset": 0,
        "again_duplicate": True,
        "same_topic": True,
        "keyed_partition": partition_for_key(b"by key", PARTITION_COUNT),
    }
    assert steps["append_stream"]["acknowledged"] == STREAM_COUNT - 1
    assert steps["append_stream"]["refusals"] == ["UNEXPECTED_OFFSET"]
    counts = [2, STREAM_COUNT // 2, STREAM_COUNT // 2 - 1]
    counts[partition_for_key(b"by key", PARTITION_COUNT)] += 1
    assert steps["read"] == {"step": "read", "counts": counts, "ordered": True, "tombstones": 1}
    assert steps["follow"] == {"step": "follow", "value": "seen", "had_heartbeats": True}
    for step, (code, reason) in REFUSALS.items():
        assert (steps[step]["code"], steps[step]["reason"]) == (code, reason), step


async def run(program: Path, address: str, topic: str) -> dict[str, Mapping[str, object]]:
    """The steps that the program reports, by name."""
    process = await asyncio.create_subprocess_exec(
        program, address, topic, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return {step["step"]: step for step in map(json.loads, output.splitlines())}
