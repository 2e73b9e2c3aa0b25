"""Jars by a lock file, from a real HTTP server."""

import hashlib
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from halfbridge.java import locked_jars as module
from halfbridge.java.locked_jars import (
    JarsError,
    JarSettings,
    LockedJar,
    locked_jars,
    read_lock,
    sole_fetcher,
)
from halfbridge.testkit.jars import KAFKA_VERSION, lock_of, resolved

pytestmark = pytest.mark.process

BODIES = {"example:app:1.0": b"app" * 100_000, "org.example:lib:2.1": b"lib"}


class Maven(BaseHTTPRequestHandler):
    """A Maven repository; the first answers to a path may be failures."""

    asked: ClassVar[Counter[str]] = Counter()
    failures: ClassVar[dict[str, int]] = {}
    bodies: ClassVar[dict[str, bytes]] = {}
    authorizations: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        """Answer with a file."""
        self.asked[self.path] += 1
        self.authorizations.append(self.headers["Authorization"])
        body = self.bodies.get(self.path)
        if self.asked[self.path] <= self.failures.get(self.path, 0):
            self.send_error(503)
        elif body is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Maven]]:
    """A server that HALFBRIDGE_MAVEN_REPOSITORY names, and that has both jars."""
    Maven.asked.clear()
    Maven.failures.clear()
    Maven.authorizations.clear()
    Maven.bodies = {
        "/m/example/app/1.0/app-1.0.jar": BODIES["example:app:1.0"],
        "/m/org/example/lib/2.1/lib-2.1.jar": BODIES["org.example:lib:2.1"],
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), Maven) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/m/"
        monkeypatch.setenv("HALFBRIDGE_MAVEN_REPOSITORY", address)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
        yield Maven
        server.shutdown()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock file of both jars."""
    path = tmp_path / "test.lock"
    path.write_text(
        "# class path\n"
        + "".join(
            f"{hashlib.sha256(body).hexdigest()} {len(body)} {coordinate}\n"
            for coordinate, body in BODIES.items()
        )
    )
    return path


def settings(cache_dir: Path) -> JarSettings:
    """What the environment says, with another cache."""
    return replace(JarSettings.from_environ(os.environ), cache_dir=cache_dir)


def test_jars_are_fetched_once(maven: type[Maven], lock: Path, tmp_path: Path) -> None:
    """In class path order, each asked for once, also by a second call."""
    first = locked_jars(lock, settings(tmp_path / "cache"))
    assert [each.read_bytes() for each in first] == list(BODIES.values())
    assert locked_jars(lock, settings(tmp_path / "cache")) == first
    assert set(maven.asked.values()) == {1}


def test_a_damaged_cache_is_made_good(maven: type[Maven], lock: Path, tmp_path: Path) -> None:
    """A jar that is gone or cut short is fetched again, and no other one."""
    app, lib = locked_jars(lock, settings(tmp_path / "cache"))
    app.write_bytes(app.read_bytes()[:10])
    assert locked_jars(lock, settings(tmp_path / "cache")) == (app, lib)
    assert app.read_bytes() == BODIES["example:app:1.0"]
    assert sorted(maven.asked.values()) == [1, 2]


def test_a_server_that_is_busy_is_asked_again(
    maven: type[Maven], lock: Path, tmp_path: Path
) -> None:
    """Twice, and then it is an error that says what to do."""
    (path, _) = maven.bodies
    maven.failures[path] = 2
    locked_jars(lock, settings(tmp_path / "cache"))
    maven.asked.clear()
    maven.failures[path] = 3
    with pytest.raises(JarsError, match=r"fetch example:app:1\.0: .*503.*MAVEN_REPOSITORY"):
        locked_jars(lock, settings(tmp_path / "other"))
    assert maven.asked[path] == 3


@pytest.mark.parametrize("body", [b"apq" * 100_000, b"short", b"app" * 200_000])
def test_other_bytes_than_locked_are_never_kept(
    maven: type[Maven], lock: Path, tmp_path: Path, body: bytes
) -> None:
    """Of the same size too: what a mirror changed does not run."""
    (path, _) = maven.bodies
    maven.bodies[path] = body
    with pytest.raises(JarsError, match="size or SHA-256 differs"):
        locked_jars(lock, settings(tmp_path / "cache"))
    assert not list(tmp_path.rglob("app-1.0.*"))


def test_a_cache_that_cannot_be_written_is_one_error(
    maven: type[Maven], lock: Path, tmp_path: Path
) -> None:
    """The text names the variable."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(JarsError, match="HALFBRIDGE_CACHE_DIR"):
        locked_jars(lock, settings(tmp_path / "cache"))


def test_processes_share_the_cache(maven: type[Maven], lock: Path, tmp_path: Path) -> None:
    """Each of three gets all jars, and one of them fetches."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from halfbridge.java.locked_jars import JarSettings, locked_jars\n"
        "assert len(locked_jars(Path(sys.argv[1]), JarSettings.from_environ(os.environ))) == 2"
    )
    command = [sys.executable, "-c", program, str(lock)]
    environ = {**os.environ, "HALFBRIDGE_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [each.wait(60) for each in processes] == [0, 0, 0]
    assert set(maven.asked.values()) == {1}


def test_user_and_password_of_an_address_are_a_header(
    maven: type[Maven], lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decoded, and no error shows them."""
    address = os.environ["HALFBRIDGE_MAVEN_REPOSITORY"].replace("//", "//me:p%40ss@")
    monkeypatch.setenv("HALFBRIDGE_MAVEN_REPOSITORY", address)
    locked_jars(lock, settings(tmp_path / "cache"))
    assert set(maven.authorizations) == {f"Basic {b64encode(b'me:p@ss').decode()}"}
    maven.bodies.clear()
    with pytest.raises(JarsError) as raised:
        locked_jars(lock, settings(tmp_path / "other"))
    assert "p%40ss" not in str(raised.value)


def test_mavens_own_repository_has_them_already(
    maven: type[Maven], lock: Path, tmp_path: Path
) -> None:
    """What Maven has fetched on this machine is taken from there, if its checksum is right."""
    local = tmp_path / "home" / ".m2" / "repository"
    good, bad = (local / each.path for each in read_lock(lock))
    for file, body in ((good, BODIES["example:app:1.0"]), (bad, b"bad")):
        file.parent.mkdir(parents=True)
        file.write_bytes(body)
    assert [each.read_bytes() for each in locked_jars(lock, settings(tmp_path / "cache"))] == [
        *BODIES.values()
    ]
    assert list(maven.asked) == ["/m/org/example/lib/2.1/lib-2.1.jar"]


def test_a_repository_may_be_a_directory(
    maven: type[Maven], lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For machines without a network: file:// names a copy of one."""
    for jar, body in zip(read_lock(lock), BODIES.values(), strict=True):
        file = tmp_path / "copy" / jar.path
        file.parent.mkdir(parents=True)
        file.write_bytes(body)
    monkeypatch.setenv("HALFBRIDGE_MAVEN_REPOSITORY", (tmp_path / "copy").as_uri())
    assert len(locked_jars(lock, settings(tmp_path / "cache"))) == len(BODIES)
    assert not maven.asked


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    """The variable, else the XDG directory, else below the home directory."""
    given = {"HALFBRIDGE_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": "/xdg"}
    assert JarSettings.from_environ(given).cache() == tmp_path
    assert JarSettings.from_environ({"XDG_CACHE_HOME": "/xdg"}).cache() == Path("/xdg/halfbridge")
    assert JarSettings.from_environ({}).cache() == Path.home() / ".cache" / "halfbridge"


def test_one_process_resolves_at_a_time(
    maven: type[Maven], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jars without a lock file too: jgo fails on a file that another process puts there."""
    monkeypatch.setattr(module, "_LOCK_S_MAX", 0.0)
    (tmp_path / "jars").mkdir()
    with (
        sole_fetcher(tmp_path / "jars"),
        pytest.raises(JarsError, match="another process has held"),
    ):
        resolved(["example:app:1.0"], settings(tmp_path))
    assert not maven.asked


def test_the_pinned_kafka_is_locked() -> None:
    """With its log binding; every line is well-formed and no jar is listed twice."""
    path = lock_of(KAFKA_VERSION)
    assert path is not None
    jars = read_lock(path)
    coordinates = [each.coordinate for each in jars]
    assert f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}" in coordinates
    assert any(each.startswith("org.apache.logging.log4j:log4j-slf4j") for each in coordinates)
    assert len(set(coordinates)) == len(coordinates)
    assert {len(bytes.fromhex(each.sha256)) for each in jars} == {32}
    assert lock_of("4.0.0") is None


def test_a_jars_place_is_mavens() -> None:
    """The group's dots are folders."""
    jar = LockedJar("0", 1, "a.b:c:1.0")
    assert jar.path == "a/b/c/1.0/c-1.0.jar"
