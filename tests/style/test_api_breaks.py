"""The wire keeps what it has: proto/contract.txtpb is the committed state, as for `buf breaking`."""

from __future__ import annotations

from pathlib import Path

import pytest

from api_breaks import breaks, read_contract, without_comments
from proto_files import compiled, own_files

OLD = """
syntax = "proto3";
package stratalog.v1;
service S { rpc Call(M) returns (M); }
enum E { E_UNSPECIFIED = 0; E_ONE = 1; }
message M {
  reserved 9;
  reserved "former";
  int32 count = 1;
  oneof at { string name = 2; int64 time_ms = 3; }
  optional bytes key = 4;
  E kind = 5;
  map<string, string> config = 6;
  repeated int32 partitions = 7;
}
message Unused {}
"""


def test_no_change_breaks_a_client() -> None:
    assert breaks(own_files(read_contract()), own_files(compiled())) == [], "scripts/api_breaks.py says more"


def test_the_contract_has_all_of_the_wire() -> None:
    committed, now = own_files(read_contract()), own_files(without_comments(compiled()))

    assert committed == now, "run make proto, and commit what it writes"


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ("int32 count = 1;", "int32 count = 1; int32 more = 10;", 0),
        ("E_ONE = 1;", "E_ONE = 1; E_TWO = 2;", 0),
        ("message Unused {}", "message Unused {} message More {}", 0),
        ("int32 count = 1;", "reserved 1; reserved 'count';", 0),
        ("E_ONE = 1;", "reserved 1; reserved 'E_ONE';", 0),
        ("int32 count = 1;", "", 1),
        ("int32 count = 1;", "reserved 1;", 1),
        ("int32 count = 1;", "int32 number = 1;", 1),
        ("int32 count = 1;", "int32 count = 10;", 1),
        ("int32 count = 1;", "int64 count = 1;", 1),
        ("int32 count = 1;", "repeated int32 count = 1;", 1),
        ("int32 count = 1;", "optional int32 count = 1;", 1),
        ("int32 count = 1;", "int32 count = 1 [json_name = 'n'];", 1),
        ("oneof at { string name = 2; int64 time_ms = 3; }", "string name = 2; int64 time_ms = 3;", 2),
        ("oneof at {", "oneof place {", 2),
        ("optional bytes key", "bytes key", 1),
        ("map<string, string>", "map<string, bytes>", 1),
        ("reserved 9;", "", 1),
        ('reserved "former";', "", 1),
        ("E_ONE = 1;", "", 1),
        ("E_ONE = 1;", "E_FIRST = 1;", 1),
        ("E kind = 5;", "Unused kind = 5;", 1),
        ("message Unused {}", "", 1),
        ("message Unused {}", "enum Unused { UNUSED_UNSPECIFIED = 0; }", 1),
        ("rpc Call(M) returns (M);", "", 1),
        ("rpc Call(M) returns (M);", "rpc Call(M) returns (Unused);", 1),
        ("rpc Call(M) returns (M);", "rpc Call(M) returns (stream M);", 1),
    ],
)
def test_each_change_that_breaks_a_client_is_found(
    tmp_path: Path, before: str, after: str, broken: int
) -> None:
    file = tmp_path / "stratalog" / "v1" / "x.proto"
    file.parent.mkdir(parents=True)
    file.write_text(OLD)
    old = own_files(compiled(tmp_path))
    file.write_text(OLD.replace(before, after))

    assert len(breaks(old, own_files(compiled(tmp_path)))) == broken
