"""The fixtures as a user's own test suite meets them."""

import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.testkit.ports import HOST, free_ports

pytestmark = pytest.mark.feature

# Plugins that happen to be installed here: a third of what such a run of pytest costs.
OF_OTHERS = (
    "cacheprovider",
    *("hypothesispytest", "anyio", "xdist", "xdist.looponfail", "pytest_cov", "timeout"),
)
WITHOUT_OTHERS = [word for name in OF_OTHERS for word in ("-p", f"no:{name}")]
USES_KAFKA = "def test_it(kafka_bootstrap_servers): assert kafka_bootstrap_servers"
PREFIXES = """
seen = set()
def test_one(topic_prefix): seen.add(topic_prefix)
def test_two(topic_prefix): seen.add(topic_prefix)
def test_fresh():
    assert len(seen) == 2
    assert all(len(prefix) == 10 and prefix[0] == 't' and prefix[-1] == '-' for prefix in seen)
"""


MEMORY = "def test_it(halfbridge_memory): assert halfbridge_memory.undecided() == []"
STACK = """
def test_it(halfbridge_stack, halfbridge_topics):
    assert halfbridge_stack.read_committed(halfbridge_topics.create("orders")) == []
"""
OWN_KIND = f"""
import pytest
pytestmark = pytest.mark.parametrize("halfbridge_stack", ["memory"], indirect=True)
{STACK}
"""


def run(
    directory: Path, test: str, *options: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest on `test` in a project of its own that does not name the plugin."""
    (directory / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *WITHOUT_OTHERS, *options, "test_it.py"],
        cwd=directory,
        env={"PATH": "", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def nowhere() -> str:
    """An address on which nothing listens."""
    return f"{HOST}:{free_ports(1)[0]}"


def test_prefix_is_fresh_for_each_test(tmp_path: Path) -> None:
    """Every test gets a prefix of its own: t, eight hex digits, a hyphen."""
    result = run(tmp_path, PREFIXES)
    assert result.returncode == 0, result.stdout


def test_missing_kafka_skips_on_a_laptop(tmp_path: Path, nowhere: str) -> None:
    """Somebody without the service can still run the rest, and reads why."""
    result = run(tmp_path, USES_KAFKA, HALFBRIDGE_TEST_BOOTSTRAP=nowhere)
    assert result.returncode == 0, result.stdout
    assert "1 skipped" in result.stdout
    assert f"nothing listens on {nowhere}" in result.stdout


def test_missing_kafka_fails_in_ci(tmp_path: Path, nowhere: str) -> None:
    """CI must not be green because its broker was away."""
    result = run(tmp_path, USES_KAFKA, HALFBRIDGE_TEST_BOOTSTRAP=nowhere, CI="true")
    assert result.returncode == 1, result.stdout
    assert f"nothing listens on {nowhere}" in result.stdout


def without_greenlet(directory: Path) -> dict[str, str]:
    """Return an environment in which greenlet is not installed."""
    (directory / "greenlet.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'greenlet'\", name='greenlet')"
    )
    return {"PYTHONPATH": str(directory)}


def test_memory_needs_nothing(tmp_path: Path) -> None:
    """Neither Kafka nor Java nor Docker."""
    result = run(tmp_path, MEMORY)
    assert "1 passed" in result.stdout
    assert "kafka:" not in result.stdout


@pytest.mark.parametrize("test", [MEMORY, OWN_KIND], ids=["memory", "stack"])
def test_a_missing_extra_is_named(tmp_path: Path, test: str) -> None:
    """Skipped on a laptop, failed in CI."""
    environ = without_greenlet(tmp_path)
    result = run(tmp_path, test, **environ)
    assert "1 skipped" in result.stdout
    assert "pip install 'halfbridge[memory]'" in result.stdout
    assert run(tmp_path, test, **environ, CI="true").returncode == 1


def test_a_command_chooses_the_stacks(tmp_path: Path, nowhere: str) -> None:
    """Each test runs once for each kind; without the option on the Kafka of the environment."""
    result = run(tmp_path, STACK, "--halfbridge-stack", "memory")
    assert "PASSED test_it.py::test_it[memory]" in result.stdout
    result = run(tmp_path, STACK, HALFBRIDGE_TEST_BOOTSTRAP=nowhere)
    assert f"nothing listens on {nowhere}" in result.stdout


def test_a_kind_means_no_other(tmp_path: Path, nowhere: str) -> None:
    """Docker that does not answer is not replaced by the embedded broker."""
    result = run(
        tmp_path, STACK, "--halfbridge-stack", "memory,docker", DOCKER_HOST="unix:///nowhere.sock"
    )
    assert "1 passed, 1 skipped" in result.stdout
    assert "HALFBRIDGE_TEST_DOCKER=1" in result.stdout


def test_a_test_that_names_its_stack_keeps_it(tmp_path: Path) -> None:
    """The command is for the others."""
    result = run(tmp_path, OWN_KIND, "--halfbridge-stack", "embedded")
    assert "PASSED test_it.py::test_it[memory]" in result.stdout
    assert "1 passed" in result.stdout


def test_an_unknown_stack_is_refused(tmp_path: Path) -> None:
    """With those that there are."""
    result = run(tmp_path, STACK, "--halfbridge-stack", "memmory")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "memmory: give memory, embedded, docker" in result.stdout


def test_loading_the_plugin_is_cheap() -> None:
    """Pytest loads it everywhere: no Kafka client, no Testcontainers until a fixture is used."""
    heavy = "{'confluent_kafka', 'testcontainers', 'fastavro', 'greenlet', 'pyspark'}"
    script = f"import halfbridge.testkit.pytest_plugin, sys; print({heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
