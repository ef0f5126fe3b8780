"""The committed gRPC stubs are what the .proto files give today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_STUBS = _ROOT / "proto" / "stratalog" / "v1"


def test_generated_stubs_are_current(tmp_path: Path) -> None:
    script = _ROOT / "scripts" / "generate_stubs.sh"
    subprocess.run(
        [str(script), str(tmp_path)], check=True, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    )
    generated = {path.name: path.read_bytes() for path in (tmp_path / "stratalog" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in _STUBS.glob("*_pb2*.py*")}
    assert sorted(committed) == sorted(generated), "run scripts/generate_stubs.sh and commit what it writes"
    changed = [name for name, data in generated.items() if committed[name] != data]
    assert not changed, "run scripts/generate_stubs.sh and commit what it writes"
