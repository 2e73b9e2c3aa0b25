"""What `halfbridge doctor` prints, its exit status, and what its file holds."""

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from halfbridge.checker.admin.doctor.facts import Severity, finding
from halfbridge.cli import cli
from halfbridge.cli.doctor import _show, _status
from halfbridge.connect.rest import ConnectRest, KafkaConnectError
from halfbridge.testkit.ports import free_ports

SECRET = "correct-horse"
NOWHERE = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"]


def run(*words: str) -> Result:
    """Run the command where no broker is."""
    return CliRunner().invoke(cli, ["doctor", *NOWHERE, *words])


def test_without_a_broker_it_says_so_to_machines() -> None:
    """One object on standard output, exit status 2."""
    result = run("--json")
    body = json.loads(result.stdout)
    assert result.exit_code == 2
    assert body["ok"] is False
    first = body["findings"][0]
    assert set(first) == {"severity", "code", "what", "fix"}
    assert (first["severity"], first["code"]) == ("error", "unreachable")


@pytest.mark.process
def test_a_bundle_holds_no_secret(tmp_path: Path) -> None:
    """Values of Kafka properties are left out, be they of the daemon or of a client."""
    bundle = tmp_path / "out.zip"
    words = ("--kafka", f"sasl.password={SECRET}", "--client-kafka", f"sasl.password={SECRET}")
    result = run(*words, "--bundle", str(bundle))
    assert result.exit_code == 2
    with zipfile.ZipFile(bundle) as opened:
        texts = {name: opened.read(name).decode() for name in opened.namelist()}
    assert set(texts) == {"findings.json", "facts.json", "settings.json", "versions.json"}
    assert SECRET not in result.output + "".join(texts.values())
    assert json.loads(texts["settings.json"])["kafka"] == {"sasl.password": "(hidden)"}
    assert json.loads(texts["findings.json"])["findings"][0]["code"] == "unreachable"


def test_a_bundle_that_cannot_be_written_is_an_error_of_its_flag(tmp_path: Path) -> None:
    """One line, and no traceback."""
    result = run("--bundle", str(tmp_path / "nowhere" / "out.zip"))
    assert result.exit_code == 2
    assert "--bundle" in result.output
    assert "cannot be written: No such file or directory" in result.output


def test_findings_are_lines_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """And how many there are; the exit status goes by the worst."""
    found = (finding("no-worker", "nobody", "run it"), finding("memory", "little", "export A=1"))
    _show(found)
    assert capsys.readouterr().out.splitlines() == [
        "error    no-worker: nobody",
        "         fix: run it",
        "warning  memory: little",
        "         fix: export A=1",
        "1 error, 1 warning",
    ]
    assert (_status(found), _status(found[1:]), _status(())) == (2, 1, 0)
    assert found[0].severity is Severity.ERROR


# --- what `halfbridge doctor` finds at an address of Kafka Connect, and which addresses it refuses

NO_DATABASE = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "5"]
STACK = (
    "org.apache.kafka.connect.errors.ConnectException: An exception occurred\n"
    "\tat io.debezium.pipeline.ErrorHandler.setProducerThrowable(ErrorHandler.java:67)\n"
    'Caused by: org.postgresql.util.PSQLException: ERROR: replication slot "shop" is gone\n'
    "\tat org.postgresql.core.v3.QueryExecutorImpl.receive(QueryExecutorImpl.java:2733)\n"
)


def status(name: str, state: str, *tasks: dict[str, Any]) -> dict[str, Any]:
    """Return what a worker says of a connector to `expand=status`."""
    numbered = [{"id": n, "worker_id": "w:8083", **task} for n, task in enumerate(tasks)]
    of_connector = {"state": state, "worker_id": "w:8083"}
    return {
        "status": {"name": name, "connector": of_connector, "tasks": numbered, "type": "source"}
    }


@contextmanager
def answering(body: bytes, code: int = 200) -> Iterator[str]:
    """Serve one answer to every GET; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def found(*words: str) -> list[dict[str, str]]:
    """Return the findings about connectors, and questions that were not answered."""
    result = CliRunner().invoke(cli, ["doctor", "--json", *NO_DATABASE, *words])
    assert result.exit_code == 2, result.output
    every: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    return [each for each in every if each["code"].startswith(("connect", "slot", "unanswered"))]


@pytest.mark.process
def test_connectors_that_do_not_run_are_found() -> None:
    """A failed task with its first cause and the call that restarts it; a running one is sound."""
    reported = {
        "shop": status("shop", "RUNNING", {"state": "FAILED", "trace": STACK}),
        "sound": status("sound", "RUNNING", {"state": "RUNNING"}),
        "still": status("still", "PAUSED", {"state": "PAUSED"}),
    }
    with answering(json.dumps(reported).encode()) as url:
        failed, paused = found("--connect-url", url + "/")
    assert (failed["code"], failed["severity"]) == ("connector-stopped", "error")
    assert (
        'tasks FAILED: org.postgresql.util.PSQLException: ERROR: replication slot "shop"'
        in (failed["what"])
    )
    restart = f"{url}/connectors/shop/restart?includeTasks=true&onlyFailed=true"
    assert failed["fix"] == f"curl -fsS -X POST '{restart}'"
    assert (paused["code"], paused["severity"]) == ("connector-stopped", "warning")
    assert paused["fix"] == f"curl -fsS -X PUT {url}/connectors/still/resume"


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "code"), [(b"[]", 200), (b"<html>", 200), (b'{"a": 1}', 200), (b"gone", 404)]
)
def test_an_answer_of_something_else_is_an_error(body: bytes, code: int) -> None:
    """A wrong address is no traceback, and not a worker without connectors."""
    with answering(body, code) as url, pytest.raises(KafkaConnectError, match=url) as raised:
        ConnectRest(url).states()
    assert raised.value.status == (None if code == HTTPStatus.OK else code)


@pytest.mark.process
def test_silence_is_a_finding() -> None:
    """Nobody listens at the address of Kafka Connect, nor at that of the database."""
    (port,) = free_ports(1)
    database = f"postgresql+psycopg://shop:correct-horse@127.0.0.1:{port}/shop"
    url = f"http://127.0.0.1:{port}"
    silent = found("--connect-url", url, "--changes-url", database)
    assert {each["code"] for each in silent} == {"connect-silent", "unanswered"}
    assert "correct-horse" not in json.dumps(silent)


@pytest.mark.parametrize(
    "words",
    [
        ("--connect-url", "ftp://host"),
        ("--connect-url", "http://host:port"),
        ("--connect-url", "http://user:correct-horse@host:8083"),
        ("--changes-url", "sqlite:///correct-horse"),
        ("--changes-url", "nonsense:correct-horse"),
    ],
)
def test_a_wrong_address_is_refused(words: tuple[str, str]) -> None:
    """Before anything is asked, with the option's name and without the value."""
    result = CliRunner().invoke(cli, ["doctor", *NO_DATABASE, *words])
    assert result.exit_code != 0
    shown = result.output + str(result.exception)
    assert words[0] in shown
    assert "correct-horse" not in shown
    assert "unreachable" not in shown
