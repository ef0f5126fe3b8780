"""Apache Kafka's own programs, fetched by Maven and run as child processes.

Maven resolves Kafka and what it needs by their coordinates, from where the machine's own settings say, into a
directory that is kept: the second run asks no server. `KafkaMissingError` tells why a machine has none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.1.1"
_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # So that a broker says on its standard error what is wrong.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_TEST_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SCRIPT_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Those of `kafka-run-class.sh`."""
# If the fetch hangs, the next worker tries it again: twice this is less than the time of a test.
_FETCH_TIMEOUT_S: Final = 140.0
_RUN_TIMEOUT_S: Final = 120.0


class KafkaMissingError(Exception):
    """Kafka cannot be had on this machine; the text says what is missing."""


class KafkaDistribution:
    """Kafka's jars in a directory. Immutable, hence thread-safe."""

    def __init__(self, jars: Path) -> None:
        """Use `fetched`."""
        self._jars = jars

    @staticmethod
    def fetched(cache: Path) -> KafkaDistribution:
        """The jars in `cache`; one process at a time fetches them if they are not there. Raises
        KafkaMissingError."""
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise KafkaMissingError(f"there is no `{program}` on this machine")
        jars = cache / f"kafka-{KAFKA_VERSION}"
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not jars.exists():
                _fetch(jars)
        return KafkaDistribution(jars)

    @property
    def class_path(self) -> str:
        """All of the jars, for who runs Java otherwise than `command` does."""
        return f"{self._jars}/*"

    def command(
        self, main_class: str, *arguments: str, heap_mib: int = 256, is_measured: bool = False
    ) -> list[str]:
        """The command line that runs one of Kafka's programs. A measured one has the options of Kafka's own
        scripts; another starts sooner, with less memory.
        """
        options = [f"-Xmx{heap_mib}m", *(_SCRIPT_OPTIONS if is_measured else _TEST_OPTIONS)]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", self.class_path, main_class, *arguments]

    def run(self, main_class: str, *arguments: str, standard_input: str = "") -> str:
        """Run a program to its end; returns what it prints. Raises CalledProcessError."""
        ended = subprocess.run(
            self.command(main_class, *arguments),
            check=True,
            text=True,
            input=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_RUN_TIMEOUT_S,
        )
        return ended.stdout

    def dump(self, files: Sequence[Path], *options: str) -> str:
        """The output of `DumpLogSegments` for these files."""
        return self.run("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))


def _fetch(jars: Path) -> None:
    """Fetch the jars into a directory beside it, then rename that: a directory that is there is whole."""
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version></dependency>"
            for group, artifact, version in _ARTIFACTS
        )
        Path(scratch, "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>stratalog</groupId><artifactId>kafka-jars</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        command = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars"]
        try:
            ended = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KafkaMissingError("fetching Kafka by Maven took too long") from None
        if ended.returncode != 0:
            raise KafkaMissingError(f"fetching Kafka by Maven failed: {_first_error(ended.stdout)}")
        os.rename(f"{scratch}/jars", jars)


def _first_error(output: str) -> str:
    """The first error, without the place where Maven looked."""
    lines = [line for line in output.splitlines() if line.startswith("[ERROR]")]
    first = lines[0].removeprefix("[ERROR] ") if lines else "it does not say why"
    return first.partition("http")[0][:200].strip()
