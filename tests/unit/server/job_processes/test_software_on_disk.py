"""An upgrade of the software on the disk is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import stratalog.server
from stratalog.server.job_processes.software_on_disk import software_digest


def test_each_change_of_a_module_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = software_digest()
    assert software_digest() == before
    assert stratalog.server.__file__ is not None
    installed = tmp_path / "installed" / "stratalog"
    hidden = tmp_path / "hidden" / "stratalog"
    module, behind = installed / "rules" / "rule.py", hidden / "rules" / "rule.py"
    for path in (module, behind):
        path.parent.mkdir(parents=True)
        path.write_text("A = 1\n")
        os.utime(path, ns=(0, 0))
    monkeypatch.setattr(stratalog, "__path__", [str(installed), str(hidden)])
    monkeypatch.setattr(stratalog.__spec__, "submodule_search_locations", [str(installed), str(hidden)])
    found = [software_digest()]
    behind.write_text("A = 22\n")
    assert software_digest() == found[0], "an import does not find it"
    module.write_text("A = 2\n")
    found.append(software_digest())
    os.utime(module, ns=(0, 1))
    found.append(software_digest())
    module.write_text("A = 22\n")
    os.utime(module, ns=(0, 1))
    found.append(software_digest())
    (installed / "kernel.so").write_bytes(b"")
    found.append(software_digest())
    module.unlink()
    found.append(software_digest())
    assert len({before, *found}) == 1 + len(found)
    last = found[-1]
    (installed / "rule.pyc").write_bytes(b"")
    assert software_digest() == last, "a cache is no software"
