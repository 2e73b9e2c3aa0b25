"""The server on a socket: TLS, connections that say nothing, errors at the start, its end."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.settings import load, to_plain
from halfbridge.testkit.ports import free_ports
from halfbridge.web import server as server_module
from halfbridge.web.app import make_app
from halfbridge.web.config import WebConfig, beside, is_loopback
from halfbridge.web.guards import Refusal
from halfbridge.web.server import COMMAND, listen, make_server
from halfbridge.web.services import Services
from halfbridge.web.work import CALLS_MAX, KEPT_MAX, Answers, Work
from tests.kit.http import answer_of
from tests.kit.waiting import until
from tests.kit.web import NO_KAFKA, READ_TOKEN, token_file

# Self-signed, for localhost and 127.0.0.1, until the year 2126; of use in these tests only.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUeohkFq2tdSanEDh+38MjCR7W2p0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzIzMDYxOVoYDzIxMjYxMDMw
MjMwNjE5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARvz41Oj9VlZ+RvTsa0udTCKy+8tijoEi/jZS6nqxIRsX9xmEffkeX9
H7YmkZCWYVZ5a4N0NOkYTHjQIOHq5cfKo28wbTAdBgNVHQ4EFgQUriJEYhZAoggG
RuRoq5FWAGXW0akwHwYDVR0jBBgwFoAUriJEYhZAoggGRuRoq5FWAGXW0akwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgHZYATXj48VE/IPHc1PRAouWQsRjkYD/1gfp0f+NuESUCIQCp
QW3I+3WM2Wg5gfFtaDhLORNWNlIW6mgfmFeqXsB/3w==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgr1/i/3tUP9viAhIx
RvhcnvHc0OoOAtCQ0D37M09B5PqhRANCAARvz41Oj9VlZ+RvTsa0udTCKy+8tijo
Ei/jZS6nqxIRsX9xmEffkeX9H7YmkZCWYVZ5a4N0NOkYTHjQIOHq5cfK
-----END PRIVATE KEY-----
"""


@contextmanager
def serving(config: WebConfig) -> Iterator[int]:
    """Serve in a thread while the block runs; yield the port."""
    server = make_server(config, make_app(Services(config)))
    with listen(config) as listener:
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        until("the server answers", lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def _config(**more: object) -> WebConfig:
    return WebConfig(bootstrap_servers=NO_KAFKA, admin_port=free_ports(1)[0], **more)


def _files(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_text(CERTIFICATE, "utf-8")
    key.write_text(KEY, "utf-8")
    return certificate, key


@pytest.mark.process
def test_tls_is_spoken_and_cookies_are_for_tls_only(tmp_path: Path) -> None:
    """With a certificate nothing is served in the clear."""
    certificate, key = _files(tmp_path)
    config = _config(admin_cert=certificate, admin_key=key, admin_tokens=token_file(tmp_path))
    trusting = ssl.create_default_context(cafile=str(certificate))
    form = f"token={READ_TOKEN}"
    with serving(config) as port:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(
                f"POST /sign-in HTTP/1.1\r\nHost: a\r\nOrigin: https://a\r\nContent-Length:"
                f" {len(form)}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                f"Connection: close\r\n\r\n{form}".encode()
            )
            answer = b"".join(iter(lambda: secure.recv(4096), b"")).decode()
        assert answer_of(f"http://127.0.0.1:{port}/livez") == (0, "")
    assert "303" in answer.splitlines()[0]
    assert "__Host-halfbridge_session=" in answer
    assert "Secure" in answer


@pytest.mark.process
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"\x16\x03\x01"])
def test_a_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """A client that says nothing, or the half of a request, holds no place for ever."""
    monkeypatch.setattr(server_module, "HEAD_S_MAX", 0.1)
    with serving(_config()) as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(said)
        assert b"200" not in b"".join(iter(lambda: client.recv(4096), b""))


@pytest.mark.process
def test_a_head_without_an_end_is_refused() -> None:
    """Header lines beyond the limit are not kept."""
    with serving(_config()) as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
        answer = b""
        try:
            for _ in range(100):
                client.sendall(b"X-Long: " + b"x" * 4000 + b"\r\n")
            answer = client.recv(4096)
        except OSError:
            return  # closed while more was sent
        assert answer == b"" or b"400" in answer.splitlines()[0]


@pytest.mark.process
def test_connections_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 at once, and the others go on."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 3)
    with serving(_config()) as port:
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
        url = f"http://127.0.0.1:{port}/livez"
        until("a connection too many is refused", lambda: answer_of(url)[0] == 503)
        for each in held:
            each.close()
        until("there is room again", lambda: answer_of(url)[0] == 200)


@pytest.mark.process
def test_a_wrong_certificate_and_a_taken_port_are_reported(tmp_path: Path) -> None:
    """Before anything is served, by the flag's name."""
    certificate, key = _files(tmp_path)
    key.write_text("nothing", "utf-8")
    with pytest.raises(ConfigError, match="--admin-cert"):
        make_server(_config(admin_cert=certificate, admin_key=key), lambda *_: None)
    config = _config()
    with listen(config), pytest.raises(ConfigError, match="--admin-port"):
        listen(config)


@pytest.mark.process
def test_the_command_serves_until_sigterm() -> None:
    """`halfbridge web` says where it listens, and ends with 0."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "halfbridge", "web", "--admin-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"halfbridge web on http://127.0.0.1:{port}\n"
        url = f"http://127.0.0.1:{port}/livez"
        until("the server answers", lambda: answer_of(url)[0] == 200)
        process.terminate()
        assert process.wait(10) == 0


# --- settings that do not fit together are refused before anything listens -----------------


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"admin_host": "0.0.0.0"}, "admin_tokens"),
        ({"admin_host": "example.org"}, "admin_tokens"),
        ({"allow_changes": True}, "admin_tokens"),
        ({"admin_cert": Path("a")}, "admin_key"),
        ({"admin_key": Path("a")}, "admin_cert"),
        ({"admin_port": 0}, "admin_port"),
        ({"metrics_urls": ("localhost:9464",)}, "metrics_urls"),
        ({"metrics_urls": ("file:///etc/passwd",)}, "metrics_urls"),
        ({"metrics_urls": ("http://a/metrics",)}, "metrics_urls"),
        ({"metrics_urls": ("http://a",) * 65}, "metrics_urls"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], field: str) -> None:
    """Without tokens nothing but a loopback address is served, and nothing is changed."""
    with pytest.raises(ConfigError) as caught:
        WebConfig(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True)],
        *[("localhost", True), ("LOCALHOST", True), ("localhost.example.org", False)],
        *[("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False)],
    ],
)
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    """A name that only begins like a loopback address is none."""
    assert is_loopback(host) is expected


def test_a_daemon_hands_its_settings_on() -> None:
    """The server beside a daemon reads that daemon's metrics, and survives the way through JSON."""
    daemon = CheckerConfig(
        topic_prefix="a-",
        kafka={"sasl.password": "secret"},
        admin_port=9465,
        admin_tokens=Path("/tokens"),
        metrics_port=9464,
        metrics_host="0.0.0.0",
        allow_changes=True,
    )
    made = beside(daemon)
    assert made.metrics_urls == ("http://127.0.0.1:9464",)
    assert (made.topic_prefix, made.admin_port, made.allow_changes) == ("a-", 9465, True)
    assert load(WebConfig, flags=to_plain(made)) == made


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"metrics_port": 9464}, "admin_tokens"), ({"admin_tokens": Path("/tokens")}, "metrics_port")],
)
def test_a_daemons_admin_port_needs_tokens_and_metrics(
    settings: dict[str, Any], field: str
) -> None:
    """The error names what is missing."""
    with pytest.raises(ConfigError) as caught:
        beside(CheckerConfig(admin_port=9465, **settings))
    assert caught.value.field == field


# --- the log of the server's process -------------------------------------------------------
_END_S_MAX = 30.0


@pytest.mark.process
def test_every_line_is_json_where_the_daemon_logs_json() -> None:
    """Lines of the server and of uvicorn; each names the process."""
    (port,) = free_ports(1)
    config = WebConfig(bootstrap_servers="127.0.0.1:1", admin_port=port, log_format="json")
    server = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stderr is not None
    try:
        server.stdin.write(json.dumps(to_plain(config)).encode() + b"\n")
        server.stdin.flush()
        first = server.stderr.readline()
        server.stdin.close()  # the daemon is gone
        lines = [json.loads(line) for line in (first, *server.stderr)]
    finally:
        with suppress(subprocess.TimeoutExpired):
            server.wait(_END_S_MAX)
        server.kill()
        server.wait()
        server.stderr.close()
    assert any("the admin port answers" in line["message"] for line in lines)
    assert {line["worker"] for line in lines} == {"web"}


# --- calls in threads: limits, and answers that several requests share ---------------------


def _run(test: Any) -> Any:
    return asyncio.run(test)


def test_a_call_that_takes_too_long_is_given_up() -> None:
    """The request is answered in time; the call still counts until it returns."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        with pytest.raises(Refusal) as caught:
            await work.run(gate.wait, within_s=0.01)
        assert caught.value.status == 504
        assert work._calls == 1
        gate.set()
        assert await work.run(lambda: 7) == 7
        await asyncio.to_thread(work._pool.shutdown)  # returns once all calls have, and are counted
        assert work._calls == 0

    _run(go())


def test_calls_beyond_the_limit_are_refused_at_once() -> None:
    """Requests that wait for a Kafka that does not answer take bounded memory."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        waiting = [asyncio.create_task(work.run(gate.wait)) for _ in range(CALLS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await work.run(lambda: 1)
        assert (caught.value.status, "Retry-After" in caught.value.headers) == (503, True)
        gate.set()
        await asyncio.gather(*waiting)
        work.close()

    _run(go())


def test_one_call_answers_all_who_ask_meanwhile() -> None:
    """Twenty browsers cost one reading of the log, and a young answer costs none."""

    async def go() -> None:
        work, calls = Work(), []
        answers = Answers(work)

        def call() -> int:
            calls.append(1)
            return len(calls)

        asked = [answers.get(("a",), call, fresh_s=60) for _ in range(20)]
        found = await asyncio.gather(*asked)
        again = await answers.get(("a",), call, fresh_s=60)
        other = await answers.get(("b",), call, fresh_s=60)
        assert [each.value for each in found if each] == [1] * 20
        assert again is not None
        assert other is not None
        assert (again.value, other.value) == (1, 2)
        answers.forget()
        anew = await answers.get(("a",), call, fresh_s=60)
        assert anew is not None
        assert anew.value == 3
        work.close()

    _run(go())


def test_a_slow_call_is_not_waited_for() -> None:
    """At first there is no answer; later the one of before, while a new one is made."""

    async def go() -> None:
        work, gate = Work(), threading.Event()
        answers = Answers(work)

        async def ask(wait_s: float) -> Any:
            return await answers.get(("a",), gate.wait, fresh_s=0, old_s=60, wait_s=wait_s)

        assert await ask(0.01) is None
        gate.set()
        first = await ask(10)
        gate.clear()
        second = await ask(0.01)
        assert first.value is second.value is True
        assert second.age_s >= first.age_s
        gate.set()
        await ask(10)
        work.close()

    _run(go())


def test_a_failure_is_raised_and_kept_for_a_while() -> None:
    """A Kafka that does not answer is not asked again by each request."""

    async def go() -> None:
        work, calls = Work(), []
        answers = Answers(work)

        def fail() -> int:
            calls.append(1)
            raise ValueError("no")

        depths = set()
        for _ in range(3):
            with pytest.raises(ValueError, match="no") as raised:
                await answers.get(("a",), fail, fresh_s=60)
            depths.add(len(raised.traceback))
        assert len(calls) == 1
        assert len(depths) == 1  # its traceback does not grow, or it would keep all who asked
        with pytest.raises(ValueError, match="no"):
            await answers.get(("a",), fail, fresh_s=0)
        assert len(calls) == 2
        work.close()

    _run(go())


def test_keys_without_end_take_bounded_memory() -> None:
    """A stranger who asks for another id each time makes room by his own answers."""

    async def go() -> None:
        work = Work()
        answers = Answers(work)
        for each in range(KEPT_MAX + 5):
            await answers.get((each,), lambda: 1, fresh_s=60)
        assert len(answers._places) <= KEPT_MAX
        work.close()

    _run(go())


def test_what_was_read_before_a_change_is_not_shown_after_it() -> None:
    """A reading that was under way when somebody changed something is for those who waited."""

    async def go() -> None:
        work, begun, gate, calls = Work(), threading.Event(), threading.Event(), []
        answers = Answers(work)

        def call() -> int:
            calls.append(1)
            number = len(calls)
            begun.set()
            assert number > 1 or gate.wait(10)
            return number

        before = asyncio.create_task(answers.get(("a",), call, fresh_s=60))
        await asyncio.to_thread(begun.wait, 10)
        answers.forget()
        after = await answers.get(("a",), call, fresh_s=60)
        gate.set()
        first, again = await before, await answers.get(("a",), call, fresh_s=60)
        assert [each.value for each in (first, after, again) if each] == [1, 2, 2]
        work.close()

    _run(go())
