"""A job through the real `spark-submit`, whose session it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import stratalog.cli.__main__ as entry
from tests.support.spark.keyed_store import KeyedStore, local_store


def submitted(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The run of a job by `spark-submit` on this machine."""
    import pyspark

    # C1 and the serial collector halve the start of a JVM.
    java_options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={tmp_path}"
    conf = {
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(tmp_path),
        "spark.ui.enabled": "false",
    }
    return subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[2]"),
            *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
            entry.__file__,
            *("spark", *arguments),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_job_runs_through_spark_submit(tmp_path: Path) -> None:
    filled = KeyedStore(local_store(tmp_path), tmp_path, seed=5)
    done = submitted(tmp_path, "stats", "state", "--store", filled.tiered.store.url, "--json")
    assert done.returncode == 0, done.stderr
    assert [one["record_count"] for one in json.loads(done.stdout)["partitions"]] == [
        len(found) for found in filled.records().values()
    ]
    assert "Submitted application: stratalog stats" in done.stderr, "it is an application of spark-submit"
