"""A compaction that the end of a tier has refused, and a head that is lost soon after."""

from __future__ import annotations

from tests.crash.test_tier_drop_crash import GONE, HEAD, Leaving
from random import Random

from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout


def test_outputs_that_the_end_of_the_tier_has_refused_hide_no_record_of_the_disk() -> None:
    site = Leaving()
    site.logs.upload()
    metadata, layout = site.logs.metadata, StoreLayout(0)
    # A job merges the last slice, as it is, into an object of its own.
    last = site.partition.slices[-1]
    data = site.bucket.get_range(
        layout.data_key(last.object_name), last.entry.data_position, last.entry.data_bytes
    )
    name = metadata.next_object_name()
    header = ObjectHeader(
        store_id=metadata.store_id,
        shard=0,
        epoch=0,
        kind=ObjectKind.REPLACEMENT,
        name=name,
        inputs=(last.object_name,),
    )
    site.faulty.make_directories("/job")
    with ObjectWriter(site.faulty, header, ObjectWriterSettings(spool_directory="/job")) as writer:
        writer.begin_slice(
            last.entry.topic_id, last.entry.topic, last.entry.partition, base_offset=last.base_offset, key_hashing=None
        )
        writer.append(data)
        writer.end_slice(SliceEnd(last.end_offset, leader_epochs=last.entry.leader_epochs))
        writer.finish().store(site.bucket, layout)
    # The tier ends before the job commits, so its commit is refused: its input is not live any more.
    assert site.logs.drop_tiers().dropped
    before = site.local_offsets()
    assert before[0] == site.log.offsets.log_start_offset == GONE
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
    rebuild.write(rebuild.plan())
    site.store = site.bucket
    site.logs = site.start(site.faulty)
    assert site.log.offsets.log_start_offset == GONE
