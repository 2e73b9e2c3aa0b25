"""What is installed: one package, beside whatever else is called serde, bridge or checker."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from halfbridge import __version__
from tests.deploy.promql import ROOT

FOLDERS = ("bridge", "checker", "serde", "spark_jobs")
MINE = "raise ImportError('the project has a folder of this name')\n"


def _build(source: Path, kind: str, to: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = to.iterdir()
    return built


def _run(python: Path, *words: str, at: Path) -> str:
    """Run Python there, as a user does whose environment is `python`'s; return what it prints."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), *words],
        cwd=at,
        env={**ours, "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _modules(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("halfbridge/") and "__pycache__" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it.

    What the wheel depends on, and pyserde, come from the environment of the tests. The checkout
    does not: a path in a .pth file brings no .pth files of its own.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages"
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    python = home / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)),
            *("install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)),
        ],
        check=True,
        timeout=120,
    )
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user's that has folders of all four names."""
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(MINE, "utf-8")
    return tmp_path


@pytest.mark.feature
def test_the_wheel_holds_one_package(wheel: Path) -> None:
    """All files of the package are in it, under the name halfbridge and no other."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "halfbridge",
        f"halfbridge-{__version__}.dist-info",
    }
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "halfbridge").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected == _modules(names)
    assert {
        f"halfbridge/monitoring/{each}" for each in ("alerts.yml", "dashboard.json")
    } <= expected


def test_the_wheel_alone_leaves_a_runtimes_spark_as_it_is(wheel: Path) -> None:
    """PySpark, and what comes with it, is a requirement of the extra only, and not pinned."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"halfbridge-{__version__}.dist-info/METADATA").decode()
    needs = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    spark = [each for each in needs if re.match(r"(pyspark|py4j|pandas|pyarrow|numpy)\b", each)]
    assert spark == [
        "pandas<3; extra == 'spark'",
        "pyspark[sql]<5,>=3.5; extra == 'spark'",
    ]


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """It is built from without git, and without the links at the top."""
    archive = _build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        # Python 3.10 and 3.11 know filters from 3.10.12 and 3.11.4 on only; the archive is ours.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    again = _build(source, "wheel", tmp_path / "again")
    names = _modules(zipfile.ZipFile(wheel).namelist())
    assert _modules(zipfile.ZipFile(again).namelist()) == names


def test_pyserde_can_be_installed_beside_it(python: Path, tmp_path: Path) -> None:
    """Both are what they are: `serde` is pyserde's, and records are still written and read."""
    said = _run(
        python,
        "-c",
        "import halfbridge, serde\n"
        "from halfbridge.serde.avro import schema_text\n"
        "print(hasattr(serde, 'serialize'), 'record' in schema_text('half_metadata.v1'))\n"
        "print(halfbridge.__file__)\n",
        at=tmp_path,
    )
    facts, where = said.splitlines()
    assert facts == "True True"
    assert Path(where).is_relative_to(python.parents[1])


def test_a_project_may_have_folders_of_these_names(python: Path, project: Path) -> None:
    """Client, daemon, command line and jobs are imported in a directory that holds such folders."""
    said = _run(python, "-m", "halfbridge", "--version", at=project)
    assert said.endswith(__version__)
    said = _run(
        python,
        "-c",
        "import halfbridge, halfbridge.checker.process.service\n"
        "import halfbridge.spark_jobs.audit.command\n"
        "import halfbridge.checker.process.worker_process, halfbridge.testkit.stack\n"
        "print(halfbridge.TransactionProducer.__module__)\n",
        at=project,
    )
    assert said == "halfbridge.bridge.producer"


@pytest.mark.spark
def test_executors_take_ours_in_such_a_project(python: Path, project: Path) -> None:
    """What a driver pickles names halfbridge's modules: an executor finds them, not the project's.

    The driver's own directory is on the path of its executors.
    """
    (project / "job.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "from halfbridge.spark_jobs.sink.datasource import TxnHalf\n"
        "from halfbridge.serde.avro import schema_text\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".getOrCreate()\n"
        "def there(source):\n"
        "    import halfbridge.spark_jobs.sink.attempt as module\n"
        "    return source.name(), module.__name__, len(schema_text('half_metadata.v1')) > 0\n"
        "print(spark.sparkContext.parallelize([TxnHalf], 1).map(there).collect())\n"
        "spark.stop()\n",
        "utf-8",
    )
    said = _run(python, "job.py", at=project)
    assert said == "[('txn_half', 'halfbridge.spark_jobs.sink.attempt', True)]"
