"""An archive of Spark's classes, which halves what a JVM of the tests costs to start.

Most JVMs here live for seconds, and spend half of their time loading and checking the same
classes. Java can keep them loaded in a file (class data sharing). `make test` writes that file once
into the environment, by running one task; without it tests are slower and otherwise the same.

Java uses an archive only with the class path it was written with, and only if every directory on
that path is empty: hence the configuration directory, and options that come from the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_DIRECTORY = Path(sys.prefix) / "spark-classes"
ARCHIVE = _DIRECTORY / "classes.jsa"
_CONFIGURATION = _DIRECTORY / "configuration"
_WRITE_S = 900.0
_SCRIPT = """
import sys
from pathlib import Path
from pyspark import SparkContext
import headrace as hr

folder = Path(sys.argv[1])
conf = {"spark.ui.enabled": "false", "spark.local.dir": str(folder)}
spark = hr.spark.session(conf=conf, log=folder / "spark.log")
with hr.open(folder / "workspace") as workspace:
    workspace.collection("a", "n long, text string", key="n")
    workspace.append("a", [{"n": 1, "text": "a"}])

    @hr.materialization(workspace, sources=["a"], sink=hr.parquet(folder / "files"))
    def task(cut):
        return cut.a.groupBy("n").count()

    task.run(spark, once=True)
spark.sql("SELECT id % 3 AS k, sum(id) FROM range(9) GROUP BY k ORDER BY k").collect()
jvm = SparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def jvm_environment(temporary: Path) -> dict[str, str]:
    """The variables with which JVMs start quickly and keep their files in `temporary`.

    Java knows no TMPDIR, and a JVM that is killed leaves its files where it had them. Tests end
    before the slower compiler pays.
    """
    _CONFIGURATION.mkdir(parents=True, exist_ok=True)
    sharing = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    quick = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = f"-Djava.io.tmpdir={temporary} {quick}{sharing}"
    return {
        "SPARK_CONF_DIR": str(_CONFIGURATION),
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": quick,
    }


def write_archive() -> None:
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        environment = jvm_environment(Path(directory))
        written = Path(directory) / "classes.jsa"
        environment["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={written} -Xlog:disable"
        subprocess.run(
            [sys.executable, "-c", _SCRIPT, directory],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            timeout=_WRITE_S,
            check=True,
        )
        # Another file system, perhaps: a rename at the end shows nobody half an archive.
        unfinished = ARCHIVE.with_suffix(".unfinished")
        unfinished.write_bytes(written.read_bytes())
        unfinished.rename(ARCHIVE)


if __name__ == "__main__":
    write_archive()
