"""Where tests run in lanes, those of a file share one: they share brokers, too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict

from tests.conftest import lane_of
from tests.test_tidy import ROOT

FILES = [
    "tests/unit/serde/test_errors.py",
    "tests/unit/serde/test_partitioner.py",
    "tests/unit/serde/test_topics.py",
    "tests/unit/testkit/test_ports.py",
]


def test_a_file_has_one_lane_and_files_have_several() -> None:
    """As `make test` runs them; xdist alone dealt the tests of each file out to all lanes."""
    lanes = ("-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *lanes, *FILES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    used = defaultdict(set)
    for lane, file in re.findall(r"\[(gw\d)\].* (tests/\S+?)::", done.stdout):
        used[file].add(lane)
    assert sorted(used) == FILES
    assert [len(used[file]) for file in FILES] == [1] * len(FILES)
    assert set.union(*used.values()) == {"gw0", "gw1"}


def test_sparks_tests_share_two_lanes() -> None:
    """One session in one JVM each; those that bring the compose file up share one lane."""
    assert lane_of("tests/spark/test_a.py::test_b[c::d]") == lane_of("tests/spark/e.py::f")
    assert lane_of("tests/spark/test_sink.py::test_b") == lane_of("tests/spark/test_sink_a.py::f")
    assert lane_of("tests/spark/test_sink.py::test_b") != lane_of("tests/spark/test_a.py::test_b")
    assert lane_of("tests/docker/test_a.py::test_b") == lane_of("tests/docker/e.py::f")
    assert lane_of("tests/sql/test_a.py::test_b") == "tests/sql/test_a.py"
