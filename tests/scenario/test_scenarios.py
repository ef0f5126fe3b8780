"""Each text in this folder is what happens.

`STRATALOG_REWRITE_SCENARIOS=1 make test ARGS=tests/scenario` writes them as it happens now; read the
difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.logs.log_scenario import LogScenario

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_happens_is_what_the_text_says(path: Path) -> None:
    printed = LogScenario().run(path.read_text())
    if os.environ.get("STRATALOG_REWRITE_SCENARIOS") == "1":
        path.write_text(printed)
    assert printed == path.read_text()
