"""The examples of README and quickstart, as a new user would copy them."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from halfbridge.testkit.jars import KafkaChoice
from halfbridge.testkit.ports import free_ports
from tests.kit.waiting import until

ROOT = Path(__file__).parents[1]
README = ROOT.joinpath("README.md").read_text("utf-8")
QUICKSTART = ROOT.joinpath("docs", "start", "quickstart.md").read_text("utf-8")
TESTING = ROOT.joinpath("docs", "how-to", "test-on-kafka.md").read_text("utf-8")
ADDRESS = "127.0.0.1:9092"
DATABASE = "///shop.db"
STOP_S_MAX = 60.0
# Kafka, topics, daemon and web page, each a new process, on a machine that does other things too.
START_S_MAX = 180.0


def blocks(language: str, page: str = README + QUICKSTART) -> list[str]:
    """Return a page's code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def is_a_test(block: str) -> bool:
    """Tell whether pytest runs a code block."""
    return "\ndef test_" in block


def programs() -> list[str]:
    """Return the order service, what it adds on asyncio, and the reader."""
    return [block for block in blocks("python") if not is_a_test(block)]


def users_test_on_kafka() -> str:
    """Return the test that docs/how-to/test-on-kafka.md shows for a real Kafka."""
    (found,) = (block for block in blocks("python", TESTING) if "raise ConnectionError" in block)
    return found


def run_users_test(text: str, directory: Path) -> str:
    """Run a user's test in a project of its own; return what pytest said of it."""
    (directory / "test_orders.py").write_text(text, "utf-8")
    ours = {
        k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_TEST") and k != "CI"
    }
    nobody = {"HALFBRIDGE_TEST_DOCKER": "1", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=directory,
        env={**ours, **nobody},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Terminals:
    """Runs the text of README and quickstart with nothing replaced but two addresses."""

    def __init__(self, address: str, database: str, directory: Path) -> None:
        self.database = f"sqlite:{database}"
        self._path = database
        self.directory = directory
        self._address = address
        timeout = {"HALFBRIDGE_TRANSACTION_TIMEOUT_MS": "1000"}
        self.environ = {**os.environ, **timeout, "PYTHONUNBUFFERED": "1"}
        self._children: list[subprocess.Popen[bytes]] = []

    def own(self, text: str) -> str:
        """Return a text with this test's broker and database."""
        return text.replace(ADDRESS, self._address).replace(DATABASE, self._path)

    def start(self, command: list[str], output: Path) -> subprocess.Popen[bytes]:
        """Start a command in the test's directory, both its outputs into a file."""
        with output.open("wb") as file:
            child = subprocess.Popen(
                command, cwd=self.directory, env=self.environ, stdout=file, stderr=file
            )
        self._children.append(child)
        return child

    def run(self, command: list[str]) -> None:
        """Run a command to its end; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def outcomes(self) -> list[str]:
        """Return what the example's fence says of its orders, sorted."""
        engine = create_engine(self.database)
        query = text("SELECT outcome FROM halfbridge_fence WHERE producer_group <> '' ORDER BY 1")
        with engine.connect() as connection:
            found = list(connection.execute(query).scalars())
        engine.dispose()
        return found

    def stop(self) -> None:
        """End what still runs, as Ctrl-C does."""
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        for child in self._children:
            child.wait(STOP_S_MAX)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    """Yield terminals; the first one's command runs, and has said that it is ready."""
    database = f"///{tmp_path / 'shop.db'}"
    kafka, web, metrics = free_ports(3)
    opened = Terminals(f"127.0.0.1:{kafka}", database, tmp_path)
    order, on_asyncio, read = programs()
    (tmp_path / "order.py").write_text(opened.own(order), "utf-8")
    (tmp_path / "both.py").write_text(opened.own(order + on_asyncio), "utf-8")
    (tmp_path / "read.py").write_text(opened.own(read), "utf-8")
    ports = ["--port", str(kafka), "--web-port", str(web), "--metrics-port", str(metrics)]
    log = tmp_path / "dev.log"
    try:
        dev = opened.start([*first_terminal(), *ports, "--dir", str(tmp_path)], log)
        until(
            "all is ready",
            lambda: b"ready; Ctrl-C" in log.read_bytes() or dev.poll() is not None,
            within_s=START_S_MAX,
            explain=log.read_text,
        )
        assert dev.poll() is None, log.read_text()
        yield opened
    finally:
        opened.stop()


def first_terminal() -> list[str]:
    """Return the command of the quickstart's first terminal, for this environment."""
    (text,) = (block for block in blocks("bash") if block.startswith("# 1"))
    bin_directory = str(Path(sys.executable).parent)
    return shlex.split(text.replace(".venv/bin", bin_directory), comments=True)


@pytest.mark.broker
def test_the_examples_work_as_they_stand(terminals: Terminals) -> None:
    """Topics, daemon, producer and reader, each as printed; the order arrives once."""
    terminals.run([sys.executable, "order.py"])
    output, log = (terminals.directory / name for name in ("read.out", "dev.log"))
    terminals.start([sys.executable, "read.py"], output)
    until("the order is read", lambda: b"two shirts" in output.read_bytes(), explain=log.read_text)
    (line,) = output.read_text("utf-8").splitlines()
    assert re.fullmatch(r"b'order-1' b'two shirts' b'[0-9a-f]{32}'", line)
    assert terminals.outcomes() == ["committed"]


def test_the_order_service_is_short() -> None:
    """25 lines at most, database and all."""
    order, _, _ = programs()
    assert len(order.splitlines()) <= 25


@pytest.mark.broker
def test_the_order_service_works_on_asyncio(terminals: Terminals) -> None:
    """Both forms in one program, with one table; each order is read once."""
    terminals.run([sys.executable, "both.py"])
    output, log = (terminals.directory / name for name in ("read.out", "dev.log"))
    terminals.start([sys.executable, "read.py"], output)
    until("both are read", lambda: output.read_bytes().count(b"\n") == 2, explain=log.read_text)
    first, second = sorted(output.read_text("utf-8").splitlines())
    assert first.startswith("b'order-1' b'two shirts' ")
    assert second.startswith("b'order-2' b'a hat' ")
    assert terminals.outcomes() == ["committed", "committed"]


@pytest.mark.broker
def test_the_check_settles_what_a_crash_left(terminals: Terminals) -> None:
    """As the quickstart says: the order of a process that died is proven to be rolled back."""
    script = terminals.directory / "order.py"
    text = script.read_text("utf-8")
    marker = "    # Left normally"
    assert marker in text
    crashing = terminals.directory / "crashing.py"
    death = "        import os; os._exit(1)\n"
    crashing.write_text(text.replace(marker, f"{death}{marker}"), "utf-8")
    terminals.start([sys.executable, "crashing.py"], terminals.directory / "crashing.out").wait()
    # The second run has to live until it is asked: a service does, this script is made to.
    living = terminals.directory / "living.py"
    waiting = "    import time; time.sleep(60)\n"
    living.write_text(text + waiting, "utf-8")
    terminals.start([sys.executable, "living.py"], terminals.directory / "living.out")
    output, log = (terminals.directory / name for name in ("read.out", "dev.log"))
    terminals.start([sys.executable, "read.py"], output)
    settled = ["committed", "rolled_back"]
    until("all is settled", lambda: terminals.outcomes() == settled, explain=log.read_text)
    until("the order is read", lambda: b"two shirts" in output.read_bytes(), explain=log.read_text)
    assert output.read_bytes().count(b"two shirts") == 1
    dead, alive = (
        (terminals.directory / name).read_text("utf-8").split()[-1]
        for name in ("crashing.out", "living.out")
    )
    assert alive in output.read_text("utf-8")
    line = f"transaction {dead} is answered ROLLBACK by group order-service"
    until("the daemon logs it", lambda: line in log.read_text("utf-8"), explain=log.read_text)


@pytest.mark.feature
def test_the_tests_in_memory_pass_as_they_stand(tmp_path: Path) -> None:
    """In a project of their own, at once, and without any Kafka."""
    for number, block in enumerate(filter(is_a_test, blocks("python"))):
        (tmp_path / str(number)).mkdir()
        said = run_users_test(block, tmp_path / str(number))
        assert "1 passed" in said
        assert "kafka:" not in said


@pytest.mark.broker
def test_the_users_test_passes_as_it_stands(tmp_path: Path) -> None:
    """In a project of its own; where Docker does not answer, on the embedded broker."""
    said = run_users_test(users_test_on_kafka(), tmp_path)
    assert "1 passed" in said
    version = KafkaChoice.from_environ(os.environ).kafka_version
    assert f"kafka: embedded {version}, 127." in said


def test_the_named_commands_exist() -> None:
    """Every `make` target that README and quickstart name is in the Makefile."""
    makefile = ROOT.joinpath("Makefile").read_text("utf-8")
    for target in re.findall(r"make ([a-z][a-z-]+)", README + QUICKSTART):
        assert f"\n{target}:" in makefile, target
