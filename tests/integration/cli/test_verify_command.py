"""`stratalog verify --compaction` over a directory: what it says, its exit codes, and that it only reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stratalog.base.clock import SystemClock
from stratalog.cli.main import stratalog
from stratalog.cli.store_repair import byte_progress, verify_command
from stratalog.objectstore.open_store import open_store
from tests.support.compaction.orders_log import OrdersLog

SOUND = """\
TOPIC   PARTITION  LOG START  COMPACTED UPTO  TIERED END  SLICES  HASHED  KEYS  SIZE  DIRTY
orders          0          0               3           5       1       0     3  167B  79B
proved 1 partition and 2 key streams of 5 records: 0 findings
"""
BROKEN = """\
TOPIC   PARTITION  LOG START  COMPACTED UPTO  TIERED END  SLICES  HASHED  KEYS  SIZE  DIRTY
orders          0          0               5           5       2       0     4  167B  0B
proved 1 partition and 2 key streams of 5 records: 1 finding
repeated-key: orders-0, offset 1 in object {0}, and offset 4 in object {1}
"""


def stored(orders: OrdersLog, folder: Path) -> str:
    """The URL of a copy of the bucket."""
    url = f"file://{folder}/store"
    store = open_store(url, clock=SystemClock())
    for info in orders.site.bucket.list(""):
        store.put(info.key, orders.site.bucket.get(info.key).data)
    return url


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["verify", *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def orders() -> OrdersLog:
    orders = OrdersLog()
    orders.upload(b"a", b"b", b"c")
    orders.upload(b"d", b"b")
    return orders


def test_a_sound_store_is_proved_and_only_read(orders: OrdersLog, tmp_path: Path) -> None:
    orders.claim_compacted(1)
    url = stored(orders, tmp_path)
    before = contents(tmp_path)
    done = verify("--compaction", "--store", url)
    assert (done.exit_code, done.stdout, done.stderr) == (0, SOUND, "")
    quick = verify("--compaction", "orders", "--quick", "--lanes", "1", "--store", url)
    assert (quick.exit_code, quick.stdout) == (0, SOUND.replace("2 key streams of 5", "0 key streams of 0"))
    assert contents(tmp_path) == before


def test_a_key_that_is_there_twice_is_named_with_both_objects(orders: OrdersLog, tmp_path: Path) -> None:
    orders.claim_compacted(1, 1)
    url = stored(orders, tmp_path)
    names = [live.object_name for live in orders.slices]
    done = CliRunner().invoke(stratalog, ["verify", "--compaction"], env={"STRATALOG_STORE": url})
    assert (done.exit_code, done.stdout) == (1, BROKEN.format(*names))
    found = verify("--compaction", "--store", url, "--json")
    assert found.exit_code == 1
    document = json.loads(found.stdout)
    assert document["finding_count"] == 1
    assert document["counts"] == {"repeated-key": 1}
    (finding,) = document["findings"]
    assert finding == {
        "kind": "repeated-key",
        "topic": "orders",
        "partition": 0,
        "object_name": names[0],
        "offset": 1,
        "reason": "",
        "later_object_name": names[1],
        "later_offset": 4,
    }
    (partition,) = document["partitions"]
    assert (partition["compacted_upto"], partition["dirty_bytes"], partition["key_count"]) == (5, 0, 4)


def test_what_cannot_be_verified_has_an_exit_code_of_its_own(orders: OrdersLog, tmp_path: Path) -> None:
    url = stored(orders, tmp_path)
    assert verify("--compaction", "--store", f"file://{tmp_path}/none").exit_code == 2
    unknown = verify("--compaction", "nope", "--store", url)
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "nope" in unknown.stderr
    aimless = verify("--store", url)
    assert aimless.exit_code == 2
    assert "--compaction" in aimless.stderr


def test_without_a_terminal_lines_tell_of_the_progress(
    orders: OrdersLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_progress, "_LINE_INTERVAL_S", 0.0)
    orders.claim_compacted(1)
    done = verify("--compaction", "--store", stored(orders, tmp_path))
    assert done.stderr.splitlines()[-1] == "proved 1 partition, 167B of 167B"


def test_an_interruption_ends_it_without_a_trace(
    orders: OrdersLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(verify_command, "counted", interrupt)
    done = verify("--compaction", "--store", stored(orders, tmp_path))
    assert (done.exit_code, done.stdout) == (130, "")
    assert list(scratch.iterdir()) == []
