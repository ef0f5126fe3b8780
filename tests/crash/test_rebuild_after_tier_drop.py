"""A head is lost right behind the end of a tier: no object from before that end hides records of the disk."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import AddOutcome
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from tests.crash.test_tier_drop_crash import END, GONE, HEAD, Leaving, check_dropped


def rebuild(site: Leaving) -> None:
    """Lose the head, rebuild it, and start the next server on the same disk."""
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
    command = HeadRebuild(actor)
    command.write(command.plan())
    site.store = site.bucket
    site.logs = site.start(site.faulty)


def give_up_upload(site: Leaving) -> None:
    """An upload whose object lands, and which its uploader gives up without a commit."""
    metadata = site.logs.metadata
    metadata.add = lambda *_: AddOutcome(0, ())  # type: ignore[method-assign]  # it gives up here
    site.logs.upload()
    del metadata.add


def put_output(site: Leaving) -> None:
    """A job merges the last slice, as it is, into an object of its own, and has not committed yet."""
    metadata, layout = site.logs.metadata, StoreLayout(0)
    last = site.partition.slices[-1]
    entry = last.entry
    data = site.bucket.get_range(layout.data_key(last.object_name), entry.data_position, entry.data_bytes)
    header = ObjectHeader(
        store_id=metadata.store_id,
        shard=0,
        epoch=0,
        kind=ObjectKind.REPLACEMENT,
        name=metadata.next_object_name(),
        inputs=(last.object_name,),
    )
    site.faulty.make_directories("/job")
    with ObjectWriter(site.faulty, header, ObjectWriterSettings(spool_directory="/job")) as writer:
        writer.begin_slice(
            entry.topic_id, entry.topic, entry.partition, base_offset=last.base_offset, key_hashing=None
        )
        writer.append(data)
        writer.end_slice(SliceEnd(last.end_offset, leader_epochs=entry.leader_epochs))
        writer.finish().store(site.bucket, layout)


@pytest.mark.parametrize("is_upload", [True, False], ids=["upload", "output"])
@pytest.mark.parametrize("is_rebuilt_twice", [True, False], ids=["twice", "once"])
def test_an_object_from_before_the_end_of_a_tier_hides_no_record_of_the_disk(
    *, is_upload: bool, is_rebuilt_twice: bool
) -> None:
    site = Leaving()
    if is_upload:
        give_up_upload(site)
    else:
        site.logs.upload()
        put_output(site)
    # The tier ends: nothing of what was put before can be committed any more.
    assert site.logs.drop_tiers().dropped
    for _ in range(1 + is_rebuilt_twice):
        rebuild(site)
        assert site.log.offsets.log_start_offset == GONE
    check_dropped(site)


def test_what_was_uploaded_after_the_end_of_a_tier_is_found_again() -> None:
    site = Leaving()
    give_up_upload(site)
    assert site.logs.drop_tiers().dropped
    site.logs.keep_tiers()
    site.logs.upload()
    slices = [*site.partition.slices]
    assert (slices[0].base_offset, slices[-1].end_offset) == (GONE, END)
    rebuild(site)
    assert [*site.partition.slices] == slices
