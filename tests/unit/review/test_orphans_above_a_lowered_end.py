"""A head is rebuilt after the end of a tier: what was never committed before that end is not taken for what came
after it."""

from __future__ import annotations

from random import Random

from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import AddOutcome
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.store_identity import StoreIdentity
from tests.crash.test_tier_drop_crash import END, GONE, HEAD, Leaving


def test_an_upload_that_was_given_up_before_the_end_of_the_tier_hides_no_record_of_the_disk() -> None:
    site = Leaving()
    # The object lands, and its uploader gives it up without a commit.
    metadata = site.logs.metadata
    metadata.add = lambda *_: AddOutcome(0, ())  # type: ignore[method-assign]
    site.logs.upload()
    del metadata.add
    assert site.logs.drop_tiers().dropped
    assert (site.partition.log_start_offset, site.partition.tiered_end_offset) == (GONE, GONE)
    site.logs.close()

    site.bucket.delete_many([HEAD])
    actor = StoreActor(
        store=site.bucket,
        clock=site.clock,
        random_source=Random(0),
        ids=site.ids,
        identity=StoreIdentity.open(site.bucket),
        writer=Writer("rebuild", "test"),
    )
    rebuild = HeadRebuild(actor)
    plan = rebuild.plan()
    rebuild.write(plan)
    print(plan.reports[0].lost)
    site.store = site.bucket
    # The topic is tiered again, and goes on.
    site.logs = site.start(site.faulty)
    print(site.partition.tiered_end_offset, [(s.base_offset, s.end_offset, s.gap) for s in site.partition.slices])
    site.append()
    site.logs.seal()
    site.logs.upload()
    site.free_space()
    tiered = [record.offset for record in site.logs.tiered_records(site.log)]
    assert sorted({*tiered, *site.local_offsets()}) == [*range(GONE, END + 1)]
