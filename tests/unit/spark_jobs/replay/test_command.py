"""The command `replay`: what is wrong on its line is said before a JVM is started."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from halfbridge.spark_jobs.replay import main
from halfbridge.spark_jobs.replay.job import Replay

_UNCOMMITTED = "isolation.level=read_uncommitted"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--from-topic", "orders", "--replay-id", "x"), "give --checkpoint, or --dry-run"),
        (("--from-topic", "orders", "--source", "t", "--replay-id", "x", "--dry-run"), "one of"),
        (("--replay-id", "x", "--dry-run"), "one of them"),
        (("--from-topic", "orders", "--replay-id", "a b", "--dry-run"), "app.id"),
        (("--from-topic", "a,b", "--replay-id", "x", "--dry-run"), "not the name of one topic"),
        (("--source", "t", "--from", "-24h", "--replay-id", "x", "--dry-run"), "with --where"),
        (("--source", "t", "--to", "-24h", "--replay-id", "x", "--dry-run"), "with --where"),
        (
            ("--from-topic", "a", "--replay-id", "x", "--dry-run", "--kafka-opt", _UNCOMMITTED),
            "isolation.level cannot be set",
        ),
    ],
)
def test_wrong_usage_is_one_line(words: tuple[str, ...], text: str) -> None:
    """It says what is missing; no broker is asked, none is there."""
    where = ("--bootstrap-servers", "localhost:1", "--to-topic", "fixes")
    refused = CliRunner().invoke(main, [*where, *words])
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert text in line


def test_the_key_file_is_the_sinks() -> None:
    """What a replay sends is signed as what a query sends; a resumed one may have another file."""
    job = Replay(replay_id="x", bootstrap_servers="k:1", to_topic="fixes", key_file="/keys.toml")
    assert job.parsed().key_file == "/keys.toml"
    assert job.identity() == replace(job, key_file="").identity()
