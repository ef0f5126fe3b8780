"""The options that docs/spark.md has in its tables."""

from __future__ import annotations

import re

from tests.support.places import REPOSITORY


def documented_options(heading: str) -> set[str]:
    """The names in the first column of the table of options behind this heading, and other names of the same
    options in its text."""
    text = (REPOSITORY / "docs" / "spark.md").read_text()
    table = text.partition(f"\n{heading}\n")[2].partition("| option |")[2].partition("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row[1])}
