"""The server on a socket: TLS, connections that say nothing, errors at the start, its end."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halfbridge.kafka.errors import ConfigError
from halfbridge.testkit.ports import free_ports
from halfbridge.web import server as server_module
from halfbridge.web.app import make_app
from halfbridge.web.config import WebConfig
from halfbridge.web.server import listen, make_server
from halfbridge.web.services import Services
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
    return WebConfig(bootstrap_servers=NO_KAFKA, admin_port=free_ports(1)[0], **more)  # type: ignore[arg-type]


def _files(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_text(CERTIFICATE, "utf-8")
    key.write_text(KEY, "utf-8")
    return certificate, key


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


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"\x16\x03\x01"])
def test_a_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """A client that says nothing, or the half of a request, holds no place for ever."""
    monkeypatch.setattr(server_module, "HEAD_S_MAX", 0.1)
    with serving(_config()) as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(said)
        assert b"200" not in b"".join(iter(lambda: client.recv(4096), b""))


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


def test_a_wrong_certificate_and_a_taken_port_are_told(tmp_path: Path) -> None:
    """Before anything is served, by the flag's name."""
    certificate, key = _files(tmp_path)
    key.write_text("nothing", "utf-8")
    with pytest.raises(ConfigError, match="--admin-cert"):
        make_server(_config(admin_cert=certificate, admin_key=key), lambda *_: None)  # type: ignore[arg-type]
    config = _config()
    with listen(config), pytest.raises(ConfigError, match="--admin-port"):
        listen(config)


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
