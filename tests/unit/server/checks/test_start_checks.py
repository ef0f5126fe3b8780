"""`stratalog server check` finds what would keep a server from starting, and leaves everything as it is."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ed25519

from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.manager.directories.locked_directory import LockedDirectory
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.server.checks import all_checks, directory_checks, store_checks
from stratalog.server.checks.all_checks import CHECKS, findings_of
from stratalog.server.checks.machine import Machine, device_of, this_machine
from stratalog.server.checks.machine_checks import ENOUGH_FILES, bounded_memory_bytes
from stratalog.server.checks.start_check import CheckedStart, CheckSeams, Finding, Verdict
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.settings import ServerSettings
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.access.certificates import Authority
from tests.support.forgetful_store import ForgetfulStore

GOOD = Machine(
    memory_bytes=1 << 40,
    max_open_file_count=ENOUGH_FILES,
    has_assertions=True,
    has_kernels=True,
    file_system_by_device={},
)


def checked(
    folder: Path,
    *,
    machine: Machine = GOOD,
    config: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    store: ObjectStore | None = None,
    probes_store: bool = False,
    filesystem: FileSystem | None = None,
    **settings: Any,
) -> CheckedStart:
    known: dict[str, Any] = {
        "data_dir": f"{folder}/data",
        "listen": "127.0.0.1:0",
        "advertise": "127.0.0.1:0",
    }
    if store is not None:
        known["store_url"] = "memory://"
    return CheckedStart(
        settings=ServerSettings(**{**known, **settings}),
        config=BrokerConfig.from_overrides(config or {}),
        seams=CheckSeams(filesystem or PosixFileSystem(), ManualClock(), SequentialIds(), store),
        machine=machine,
        environment=environment or {},
        probes_store=probes_store,
    )


def bad(start: CheckedStart) -> list[Finding]:
    """The findings that are not fine, apart from a store beside its data, which the tests have."""
    found = [one for one in findings_of(start) if one.verdict in (Verdict.WARNING, Verdict.ERROR)]
    return [one for one in found if one.check != "disks" or not one.text.startswith("the store")]


def with_store(clock: ManualClock, shard_count: int = 2) -> MemoryObjectStore:
    store = MemoryObjectStore(clock)
    StoreIdentity.open_or_create(store, SequentialIds(), shard_count)
    return store


def test_a_good_start_has_no_finding_and_leaves_nothing(tmp_path: Path) -> None:
    found = list(findings_of(checked(tmp_path)))
    assert [one for one in found if one.verdict is Verdict.ERROR] == []
    assert {"python", "listen", "directory", "space", "store", "files", "memory"} <= {
        one.check for one in found
    }
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_taken_or_given_twice_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        [listen] = bad(checked(tmp_path, listen=address))
        [metrics] = bad(checked(tmp_path, metrics_listen=address))
        [twice] = bad(checked(tmp_path, listen=address, metrics_listen=address))
    assert listen[:2] == ("listen", Verdict.ERROR)
    assert metrics[:2] == ("metrics-listen", Verdict.ERROR)
    assert twice[:2] == ("metrics-listen", Verdict.ERROR)


@pytest.mark.parametrize(
    ("begin_days", "end_days", "verdict", "text"),
    [
        (-10, 400, Verdict.OK, "expires in 400 days"),
        (-10, 30, Verdict.OK, "expires in 30 days"),
        (-10, 29, Verdict.WARNING, "expires in 29 days; renew it"),
        (-10, 0.5, Verdict.WARNING, "expires in less than a day; renew it"),
        (-10, 0, Verdict.ERROR, "has expired less than a day ago; renew it"),
        (-10, -1, Verdict.ERROR, "has expired 1 day ago; renew it"),
        (2, 400, Verdict.ERROR, "is valid in 2 days, and no client takes it before"),
    ],
)
def test_the_days_that_a_certificate_has_left(
    tmp_path: Path, begin_days: float, end_days: float, verdict: Verdict, text: str
) -> None:
    now = dt.datetime.fromtimestamp(ManualClock().now_ms() / 1000, dt.UTC)
    certificate = Authority(tmp_path, "ca").issue(
        "server", begin=now + dt.timedelta(begin_days), end=now + dt.timedelta(end_days)
    )
    start = checked(tmp_path, tls_cert=certificate.cert, tls_key=certificate.key)
    [found] = [one for one in findings_of(start) if one.check.startswith("tls")]
    assert found[:2] == ("tls-cert", verdict)
    assert text in found.text


def test_a_key_that_clients_cannot_use_is_a_warning(tmp_path: Path) -> None:
    certificate = Authority(tmp_path, "ca").issue("server", key=ed25519.Ed25519PrivateKey.generate())
    start = checked(tmp_path, tls_cert=certificate.cert, tls_key=certificate.key)
    _, found = [one for one in findings_of(start) if one.check.startswith("tls")]
    assert found[:2] == ("tls-cert", Verdict.WARNING)
    assert "has a key of the kind Ed25519" in found.text


def test_files_of_access_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, other = authority.issue("server"), authority.issue("other")
    files: dict[str, Any] = {
        "tls_cert": certificate.cert,
        "tls_key": certificate.key,
        "tls_client_ca": authority.path,
    }
    access = tmp_path / "access.toml"
    access.write_text("[principals.a]")
    assert bad(checked(tmp_path, **files, access_file=str(access))) == []
    foreign: dict[str, Any] = {**files, "tls_key": other.key}
    [mixed] = bad(checked(tmp_path, **foreign))
    absent: dict[str, Any] = {**files, "tls_client_ca": f"{tmp_path}/absent"}
    [missing] = bad(checked(tmp_path, **absent))
    access.write_text("[principals.a]\nallowed = []")
    [misspelt] = bad(checked(tmp_path, **files, access_file=str(access)))
    assert mixed[:2] == missing[:2] == ("tls", Verdict.ERROR)
    assert "absent" in missing.text
    assert misspelt[:2] == ("access-file", Verdict.ERROR)
    assert "allowed" in misspelt.text


def test_a_name_without_an_address_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def find(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "nowhere.example":
            raise socket.gaierror(-2, "unknown")
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    [found] = bad(checked(tmp_path, advertise="nowhere.example:9190"))
    assert found[:2] == ("advertise", Verdict.WARNING)


def test_a_directory_in_use_is_an_error_and_its_lock_stays_free(tmp_path: Path) -> None:
    directory = LockedDirectory(PosixFileSystem(), f"{tmp_path}/data", UUID(int=1))
    [found] = bad(checked(tmp_path))
    assert found[:2] == ("lock", Verdict.ERROR)
    directory.release()
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir())
    assert bad(checked(tmp_path)) == []
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()) == before
    LockedDirectory(PosixFileSystem(), f"{tmp_path}/data", UUID(int=1)).release()


def test_a_path_that_is_no_directory_or_may_not_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    found = bad(checked(tmp_path, log_dirs=(f"{tmp_path}/file",)))
    assert ("directory", Verdict.ERROR) in [one[:2] for one in found]

    def may_write(path: str) -> bool:
        return path != str(tmp_path)

    monkeypatch.setattr(directory_checks, "may_write", may_write)
    [refused] = bad(checked(tmp_path))
    assert refused[:2] == ("directory", Verdict.ERROR)


def test_a_damaged_identity_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("nonsense")
    [found] = bad(checked(tmp_path))
    assert found[:2] == ("directory", Verdict.ERROR)


def test_directories_of_one_disk_are_a_warning_and_the_same_one_twice_an_error(tmp_path: Path) -> None:
    [found] = bad(checked(tmp_path, log_dirs=(f"{tmp_path}/other",)))
    assert found[:2] == ("disks", Verdict.WARNING)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert ("disks", Verdict.ERROR) in [
        one[:2] for one in bad(checked(tmp_path, log_dirs=(f"{tmp_path}/link/../data",)))
    ]
    texts = [one.text for one in findings_of(checked(tmp_path)) if one.check == "disks"]
    assert len(texts) == 1
    assert texts[0].startswith("the store"), "it is on the disk of its data"


@pytest.mark.parametrize(
    ("kind", "is_good"),
    [("ext4", True), ("xfs", True), ("zfs", True), ("tmpfs", False), ("nfs4", False), ("fuse.sshfs", False)],
)
def test_a_file_system_that_does_not_keep_what_disk_promises_is_a_warning(
    tmp_path: Path, kind: str, is_good: bool
) -> None:
    machine = GOOD._replace(file_system_by_device={device_of(str(tmp_path)): kind})
    found = bad(checked(tmp_path, machine=machine))
    assert [one[:2] for one in found] == ([] if is_good else [("file-system", Verdict.WARNING)])


def test_too_little_space_files_or_memory_is_a_warning(tmp_path: Path) -> None:
    start = checked(tmp_path, config={"log.dir.min.free.bytes": str(1 << 60)})
    assert [one[:2] for one in bad(start)] == [("space", Verdict.WARNING)]
    wanted = bounded_memory_bytes(start)
    for machine, names in (
        (GOOD._replace(max_open_file_count=ENOUGH_FILES - 1), ["files"]),
        (GOOD._replace(max_open_file_count=-1), []),
        (GOOD._replace(memory_bytes=wanted - 1), ["memory"]),
        (GOOD._replace(memory_bytes=wanted), []),
        (GOOD._replace(memory_bytes=0), []),
        (GOOD._replace(has_kernels=False), ["python"]),
    ):
        found = bad(checked(tmp_path, machine=machine))
        assert [one[:2] for one in found] == [(name, Verdict.WARNING) for name in names]
    [stripped] = bad(checked(tmp_path, machine=GOOD._replace(has_assertions=False)))
    assert stripped[:2] == ("python", Verdict.ERROR)


def test_a_variable_that_no_server_reads_is_a_warning(tmp_path: Path) -> None:
    environment = {
        "STRATALOG_LISTN": "",
        "STRATALOG_LISTEN": "",
        "STRATALOG_SERVER": "",
        "STRATALOG_DEV_PORT": "",
        "HOME": "",
    }
    [(check, verdict, text)] = bad(checked(tmp_path, environment=environment))
    assert (check, verdict) == ("environment", Verdict.WARNING)
    assert "STRATALOG_LISTN " in text
    assert "did you mean STRATALOG_LISTEN?" in text


def test_the_store_has_to_be_that_of_the_directories_with_these_shards(tmp_path: Path) -> None:
    store = with_store(ManualClock())
    assert bad(checked(tmp_path, store=store)) == []
    wrong: list[dict[str, Any]] = [{"shard_count": 3}, {"own_shards": (0, 2)}]
    for settings in wrong:
        [found] = bad(checked(tmp_path, store=store, **settings))
        assert found[:2] == ("store", Verdict.ERROR), settings
    directory = LockedDirectory(PosixFileSystem(), f"{tmp_path}/data", UUID(int=1))
    directory.bind_store(str(UUID(int=99)))
    directory.release()
    for other in (store, MemoryObjectStore(ManualClock())):
        [found] = bad(checked(tmp_path, store=other))
        assert found[:2] == ("store", Verdict.ERROR)
        assert f"{tmp_path}/data" in found[2]


def test_a_server_that_only_reads_needs_a_store(tmp_path: Path) -> None:
    [found] = bad(checked(tmp_path, store=MemoryObjectStore(ManualClock()), read_only=True))
    assert found[:2] == ("store", Verdict.ERROR)
    assert bad(checked(tmp_path, store=with_store(ManualClock()), read_only=True)) == []


def test_clocks_that_are_apart_are_a_warning(tmp_path: Path) -> None:
    for apart_ms, names in (
        (store_checks.MAX_CLOCK_DISTANCE_MS, []),
        (-61_000, ["clock"]),
        (61_000, ["clock"]),
    ):
        clock = ManualClock()
        clock.advance(1_000_000 + apart_ms)
        store = with_store(clock)
        start = checked(tmp_path, store=store)
        assert isinstance(start.seams.clock, ManualClock)
        start.seams.clock.advance(1_000_000)
        assert [one[0] for one in bad(start)] == names


def test_conditional_writes_are_probed_only_when_that_is_wanted(tmp_path: Path) -> None:
    store = ForgetfulStore(ManualClock())
    [skipped] = [one for one in findings_of(checked(tmp_path, store=store)) if one.check == "probe"]
    assert skipped.verdict is Verdict.SKIPPED
    assert [*store.list("")] == []
    [tried] = [
        one for one in findings_of(checked(tmp_path, store=store, probes_store=True)) if one.check == "probe"
    ]
    assert (tried.verdict, [*store.list("")]) == (Verdict.OK, [])
    store.keeps = True
    [left] = bad(checked(tmp_path, store=store, probes_store=True))
    assert left[:2] == ("probe", Verdict.WARNING)
    store.ignores = True
    [broken] = bad(checked(tmp_path, store=store, probes_store=True))
    assert broken[:2] == ("store", Verdict.ERROR)


def test_a_look_that_the_system_refuses_is_an_error_of_one_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(start: CheckedStart) -> Iterator[Finding]:
        raise PermissionError(13, start.settings.data_dir)

    monkeypatch.setattr(all_checks, "CHECKS", (refusing, *CHECKS))
    [found] = bad(checked(tmp_path))
    assert found[:2] == ("refusing", Verdict.ERROR)


def test_the_facts_of_this_machine_are_there() -> None:
    machine = this_machine()
    assert machine.memory_bytes > 1 << 28
    assert machine.has_assertions
    assert machine.max_open_file_count != 0


def test_the_command_has_a_line_for_each_finding_and_an_exit_code(tmp_path: Path) -> None:
    options = ["--data-dir", f"{tmp_path}/data", "--listen", "127.0.0.1:0"]
    good = CliRunner().invoke(stratalog, ["server", "check", *options])
    assert good.exit_code == 0, good.output
    assert {line.split()[0] for line in good.stdout.splitlines()[1:]} <= {"ok", "warning", "skipped"}
    assert list(tmp_path.iterdir()) == []
    wrong = ["--upload-interval", "0", "--config", "a.b=1"]
    refused = CliRunner().invoke(stratalog, ["server", "check", *options, *wrong, "--json"])
    assert refused.exit_code == 1
    assert [(one["check"], one["verdict"]) for one in json.loads(refused.stdout)] == [
        ("settings", "error")
    ] * 2
