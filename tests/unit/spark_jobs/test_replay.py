"""The command `replay`: errors of its command line are reported before a JVM is started."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.replay import Replay, ReplayPlan, SourceRange, main, make_plan, read_plan

_UNCOMMITTED = "isolation.level=read_uncommitted"
_TOKENS = "oauth_cb=shop.tokens:token"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--from-topic", "orders", "--replay-id", "x"), "give --checkpoint, or --dry-run"),
        (("--from-topic", "orders", "--source", "t", "--replay-id", "x", "--dry-run"), "one of"),
        (("--replay-id", "x", "--dry-run"), "one of them"),
        (("--from-topic", "orders", "--replay-id", "a b", "--dry-run"), "app.id"),
        (("--from-topic", "a,b", "--replay-id", "x", "--dry-run"), "not the name of one topic"),
        (
            ("--from-topic", "a", "--from", "latest", "--replay-id", "x", "--dry-run"),
            "cannot start at latest",
        ),
        (("--source", "t", "--from", "-24h", "--replay-id", "x", "--dry-run"), "with --where"),
        (("--source", "t", "--to", "-24h", "--replay-id", "x", "--dry-run"), "with --where"),
        (
            ("--from-topic", "a", "--replay-id", "x", "--dry-run", "--kafka-opt", _UNCOMMITTED),
            "isolation.level cannot be set",
        ),
        (
            ("--from-topic", "a", "--replay-id", "x", "--dry-run", "--kafka-opt", _TOKENS),
            "set sasl.jaas.config and sasl.login.callback.handler.class",
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


# --- a replay's slices: all rows, each once, in order, and the same after every restart ----

IDENTITY = {"replay_id": "fix-1", "to_topic": "orders"}
PLACES = (
    SourceRange("b", 0, 5, 6, 1),
    SourceRange("a", 1, 100, 200, 60),
    SourceRange("a", 0, 0, 7, 7),
)


@pytest.mark.parametrize("slice_rows", [1, 3, 7, 60, 68, 10_000])
def test_every_offset_is_in_one_slice(slice_rows: int) -> None:
    """However fine the cut, and slices of a partition follow each other."""
    plan = make_plan(IDENTITY, PLACES, slice_rows=slice_rows)
    assert plan.slices == -(-68 // slice_rows)
    for place in PLACES:
        where = (place.topic, place.partition)
        cuts = [plan.bounds(n)[where] for n in range(plan.slices) if where in plan.bounds(n)]
        offsets = [offset for low, high in cuts for offset in range(low, high)]
        assert offsets == list(range(place.low, place.high))


def test_a_plan_is_read_as_it_was_written() -> None:
    """A resumed replay cuts where the first run did."""
    plan = make_plan(IDENTITY, PLACES, slice_rows=10, topic_id="AbC")
    assert read_plan(plan.to_json(), "plan.json") == plan
    of_0_1 = plan.to_json().replace(' "topic_id": "AbC",\n', "")
    assert read_plan(of_0_1, "plan.json").topic_id == ""
    assert plan.rows == 68
    assert [place.topic for place in plan.ranges] == ["a", "a", "b"]


def test_nothing_to_send_is_a_plan() -> None:
    """Of no slices."""
    plan = make_plan(IDENTITY, [], slice_rows=10)
    assert (plan.slices, plan.rows) == (0, 0)
    assert read_plan(plan.to_json(), "plan.json") == ReplayPlan(IDENTITY, (), 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan_version": 2}'])
def test_a_damaged_plan_is_reported(text: str) -> None:
    """With its place and what to do."""
    with pytest.raises(JobError, match=r"s3://c/plan\.json is damaged: .*another --replay-id"):
        read_plan(text, "s3://c/plan.json")
