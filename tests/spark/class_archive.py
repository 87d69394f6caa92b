"""An archive of Spark's classes and an unpacked PySpark, which halve what Spark costs to start.

Most JVMs here live for seconds, and spend half of their time loading and checking the same
classes. Java can keep them loaded in a file (class data sharing). `make test` writes that file once
into the environment, by running one task; without it tests are slower and otherwise the same.

Java uses an archive only with the class path it was written with, and only if every directory on
that path is empty: hence the configuration directory, and options that come from the environment.

Spark's Python processes import PySpark from a zip of sources, and each of them compiles it anew for
half a second. The home that Spark is given here has a directory in the place of each zip, with a
link to the installed package, whose modules are compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import py4j
import pyspark

# Without links, because the class path must be that of the archive for whoever shares it.
_DIRECTORY = Path(sys.prefix).resolve() / "spark-classes"
ARCHIVE = _DIRECTORY / "classes.jsa"
_CONFIGURATION = _DIRECTORY / "configuration"
_HOME = _DIRECTORY / "home"
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
    """The variables with which Spark starts quickly and JVMs keep their files in `temporary`.

    Java knows no TMPDIR, and a JVM that is killed leaves its files where it had them. Tests end
    before the slower compiler pays.
    """
    _CONFIGURATION.mkdir(parents=True, exist_ok=True)
    _make_home()
    sharing = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    quick = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = f"-Djava.io.tmpdir={temporary} {quick}{sharing}"
    return {
        "SPARK_HOME": str(_HOME),
        "SPARK_CONF_DIR": str(_CONFIGURATION),
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": quick,
    }


def _make_home() -> None:
    """Make the home of Spark, unless it is there; others may be making it."""
    installed = Path(pyspark.__file__).resolve().parent
    links = {_HOME / name: installed / name for name in ("bin", "jars")}
    for archive in (installed / "python" / "lib").glob("*.zip"):
        package = installed if archive.stem == "pyspark" else Path(py4j.__file__).resolve().parent
        links[_HOME / "python" / "lib" / archive.name / package.name] = package
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(target)


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
