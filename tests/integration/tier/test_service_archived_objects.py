"""A slice in an archived object: the reader gets a reason of its own, and everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import ObjectArchivedError
from tests.support.service.service_bench import service_bench
from tests.support.tiered.stores.archiving_store import ArchivingStore


async def test_reads_of_an_archived_slice_fail_with_their_own_reason(tmp_path: Path) -> None:
    store = ArchivingStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        for topic in ("old", "new"):
            await bench.client.admin.create_topic(topic, config={"retention.ms": "-1"})
        await bench.append("old", [b"archived"])
        await bench.client.admin.upload(delete_local=True)
        store.archived.update(info.key for info in store.list("shards/0000/data/"))
        assert store.archived
        await bench.append("new", [b"readable"])
        await bench.client.admin.upload(delete_local=True)
        with pytest.raises(ObjectArchivedError) as refused:
            await bench.values("old")
        assert "restore it" in refused.value.message
        assert (refused.value.fields["topic"], refused.value.fields["partition"]) == ("old", 0)
        assert "store" not in refused.value.fields, "the url of the store stays inside"
        assert await bench.values("new") == [[b"readable"]]
        verified = await bench.client.admin.verify()
        assert [finding.topic for finding in verified.findings] == ["old"]
        store.archived.clear()
        assert await bench.values("old") == [[b"archived"]]
