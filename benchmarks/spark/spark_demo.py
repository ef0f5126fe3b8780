"""The demonstration's part in Spark: the time beyond the start of its session, in the same run.

Spark compacts one topic, makes a table of the latest state of another, and reads two. A quick run has 4,000
flights instead of all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from report import Row, promised_cost, run
from stratalog.cli.demo.flights import FLIGHT_COUNT
from stratalog.pipeline.local_session import why_spark_cannot_run

QUICK_FLIGHT_COUNT = 4_000
MAX_S = 15
START = "start Spark"


def measure(quick: bool) -> Iterator[Row]:
    """The row; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    count = QUICK_FLIGHT_COUNT if quick else FLIGHT_COUNT
    done = subprocess.run(
        [sys.executable, "-m", "stratalog.cli", "demo", "--json", "--flights", str(count)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    took_s = json.loads(done.stdout.splitlines()[-1])["seconds"]
    [work] = [name for name in took_s if "with Spark" in name]
    ratio = took_s[work] / took_s[START]
    sys.stderr.write(f"Spark took {took_s[START]:.1f} s to start, and {ratio:.2f} times that for the work\n")
    yield promised_cost(f"the demo in Spark, {count:,} flights, beyond its start", "s", took_s[work], MAX_S)


if __name__ == "__main__":
    sys.exit(run(measure))
