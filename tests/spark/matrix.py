"""Runs `test_matrix.py` on each line of Spark, and prints a table of what works.

    python tests/spark/matrix.py DIRECTORY 3.5 4.0 ...

Each line has an environment of its own in DIRECTORY, with its newest release on the package index;
other packages are those of constraints.txt. Jars are those of the project's lock files. Exit
status: 0 all passed; 1 some test failed, or an environment could not be made.
"""

import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
SUITE = "tests/spark/test_matrix.py"
# Spark 3.5 needs NumPy 1, and a pyarrow that supports it.
_OLDER = {"3.5": ("numpy<2", "pyarrow<20")}
_UNPINNED = re.compile(r"(pyspark|py4j|numpy|pandas|pyarrow)==")
_MORE = ("pytest", "pytest-timeout", "hypothesis", "setuptools", "hatchling", "editables")
_VERSION = "import pyspark; print(pyspark.__version__)"
_RUN_S_MAX = 3600.0  # of a suite: three minutes on an idle machine

Results = Mapping[str, str]  # test -> its result


def main(directory: Path, lines: list[str]) -> int:
    """Run all, print the table, and return the exit status."""
    table: dict[str, Results] = {}
    failed = []
    for line in lines:
        print(f"=== Spark {line}", file=sys.stderr, flush=True)
        try:
            python = environment(directory / line, line)
            version = subprocess.check_output([python, "-c", _VERSION], text=True).strip()
            table[version], status = run(python, directory / f"{line}.xml")
        except (subprocess.SubprocessError, OSError) as error:
            print(error, file=sys.stderr)
            status = 1
        if status:
            failed.append(line)
    print("\n".join(markdown(table)))
    if failed:
        print(f"failed on Spark {' '.join(failed)}", file=sys.stderr)
    return bool(failed)


def environment(home: Path, line: str) -> Path:
    """Return the interpreter of an environment with the newest release of a line."""
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True, symlinks=True)
    constraints = home / "constraints.txt"
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines(keepends=True)
    constraints.write_text("".join(pin for pin in pins if not _UNPINNED.match(pin)), "utf-8")
    install = [*(str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")]
    install += ["--upgrade", "-c", str(constraints)]
    subprocess.run([*install, *_MORE], check=True)
    project = f"{ROOT}[delta,embedded,spark]"
    spark = (f"pyspark[sql]=={line}.*", *_OLDER.get(line, ()))
    subprocess.run([*install, "--no-build-isolation", *spark, "-e", project], check=True)
    return python


def run(python: Path, report: Path) -> tuple[Results, int]:
    """Run the suite; return the result of each test, and pytest's exit status."""
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-m", "", "-p", "no:cacheprovider", SUITE]
    command.append(f"--junitxml={report}")
    done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False, timeout=_RUN_S_MAX)
    return results(report.read_text("utf-8")), done.returncode


def results(report: str) -> Results:
    """Return each test's result in a JUnit report: works, fails, or why it was skipped."""
    said = {}
    for case in ET.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        is_bad = case.find("failure") is not None or case.find("error") is not None
        if is_bad:
            result = "**fails**"
        else:
            result = "works" if skipped is None else skipped.get("message", "skipped")
        said[case.get("name", "")] = result
    return said


def markdown(table: Mapping[str, Results]) -> list[str]:
    """Return the lines of a table: a row for each test, a column for each version."""
    names = list(dict.fromkeys(name for results in table.values() for name in results))
    rows = [["", *table], ["---"] * (len(table) + 1)]
    for name in names:
        title = name.removeprefix("test_").replace("_", " ").replace("[", " (").replace("]", ")")
        rows.append([title, *(results.get(name, "not run") for results in table.values())])
    return [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).expanduser().absolute(), sys.argv[2:]))
