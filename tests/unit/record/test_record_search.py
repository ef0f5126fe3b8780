"""Finding a record by halves gives what looking at every record gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.batch import records_payload
from stratalog.record.builder import encode_batch
from stratalog.record.header import parse_header
from stratalog.record.record import Record
from stratalog.record.record_search import first_record
from stratalog.record.records_summary import RecordsSummary


def searched(records: list[Record], *, guess: bool) -> tuple[Record | None, int]:
    """The first record that the search finds without a key, and the number of summaries that it asked."""
    batch = encode_batch(records)
    header = parse_header(batch)
    asked: list[RecordsSummary] = []

    def may_match(part: RecordsSummary) -> bool:
        asked.append(part)
        return guess or part.null_key_count > 0

    found = first_record(
        records_payload(batch, 0, header),
        header.records_count,
        header.base_timestamp,
        may_match=may_match,
        matches=lambda record: record.key is None,
    )
    return found, len(asked)


@given(
    st.integers(1, 5000),
    st.sets(st.integers(0, 4999), max_size=4),
    st.booleans(),
)
def test_the_first_of_those_that_match_is_found(count: int, places: set[int], guess: bool) -> None:
    """Also where the summary cannot tell, so that every part has to be looked at."""
    records = [
        Record(index, 1000 - index, None if index in places else b"k", b"v%d" % index)
        for index in range(count)
    ]
    found, asked_count = searched(records, guess=guess)
    expected = [record for record in records if record.key is None]
    assert found == (expected[0] if expected else None)
    if not guess:
        assert asked_count <= 2 * count.bit_length()


def test_a_million_records_are_not_looked_at_one_by_one() -> None:
    records = [Record(0, 0, b"", b"")] * 999_999 + [Record(0, 7, None, b"last")]
    found, asked_count = searched(records, guess=False)
    assert found == Record(999_999, 7, None, b"last")
    assert asked_count < 30
