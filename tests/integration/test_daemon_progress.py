"""Progress that cannot be trusted: the partition stops, nothing is guessed (DESIGN.md, Offsets).

The operator's `checker init --partition` sets it again after matching the real topics, and the
daemon continues without a duplicate and without a loss.
"""

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from halfbridge.cli import cli
from tests.integration.daemon import Daemon
from tests.integration.installation import Installation
from tests.integration.tail import Stored
from tests.kit.waiting import SETTLED_S, until

pytestmark = pytest.mark.broker

BROKEN, SOUND = 0, 1
# An operator who runs `checker init` must not wait for the session timeout of a member that left.
LEAVING = {"leave": True}


class Story:
    """An installation in which each partition has delivered, undecided and new transactions."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        installation.make(partitions=2)
        self.orders = installation.topic("orders")
        self.wanted: list[str] = []
        self.undecided: dict[int, Stored] = {}

    def run(self) -> None:
        """Have a daemon do its work, so that there is progress; then stop it."""
        daemon = self.installation.start(**LEAVING)
        for partition in (BROKEN, SOUND):
            for _ in range(5):
                self.commit_one(partition)
            self.installation.write(self.installation.names.half, b"junk", partition=partition)
            self.undecided[partition] = self.installation.half(self.orders, partition=partition)
            self.installation.rollback(self.installation.half(self.orders, partition=partition))
            self.commit_one(partition)
            self.installation.await_marker(partition)
        until("progress is committed", lambda: self._is_committed(BROKEN))
        daemon.stop()

    def commit_one(self, partition: int) -> None:
        """Append a committed transaction."""
        half = self.installation.pass_through(self.orders, partition=partition)
        self.wanted.append(half.transaction_id)

    def decide_the_rest(self) -> None:
        """Commit what is undecided, and one more transaction, in each partition."""
        for partition, half in self.undecided.items():
            self.installation.commit(half)
            self.wanted.append(half.transaction_id)
            self.commit_one(partition)

    def delivered(self, *pairs: int) -> list[str]:
        """Return all that is ever delivered of what was decided, while these pairs are served."""
        records = self.installation.delivered(self.orders, pairs=pairs)
        return [each.transaction_id for each in records]

    def init(self, partition: int, *more: str) -> dict[str, Any]:
        """Run `checker init` and return what it says."""
        installation = self.installation
        words = ("checker", "init", "--partition", str(partition), "--json", *more)
        options = ("--bootstrap-servers", installation.servers)
        prefix = ("--topic-prefix", installation.names.prefix)
        result = CliRunner().invoke(cli, [*words, *options, *prefix])
        assert result.exit_code == 0, result.output
        said: dict[str, Any] = json.loads(result.stdout)
        return said

    def _is_committed(self, partition: int) -> bool:
        # The op log's end is a commit marker away from O at most.
        progress = self.installation.progress(partition)
        return progress.half == self.undecided[partition].offset


def _damage(story: Story) -> None:
    names = story.installation.names
    progress = story.installation.progress(BROKEN)
    text = progress.metadata()
    story.installation.set_committed(names.op, progress.op, text[:-1] + "x", partition=BROKEN)


def _newer_version(story: Story) -> None:
    names = story.installation.names
    progress = story.installation.progress(BROKEN)
    text = progress.metadata().replace("v1", "v2")
    story.installation.set_committed(names.op, progress.op, text, partition=BROKEN)


def _reset_op(story: Story) -> None:
    story.installation.set_committed(story.installation.names.op, 0, "", partition=BROKEN)


def _shift_op(story: Story) -> None:
    names = story.installation.names
    progress = story.installation.progress(BROKEN)
    story.installation.set_committed(
        names.op, progress.op - 1, progress.metadata(), partition=BROKEN
    )


def _reset_half(story: Story) -> None:
    story.installation.set_committed(story.installation.names.half, 0, "", partition=BROKEN)


@pytest.mark.feature
@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (_damage, "damaged"),
        (_newer_version, "unknown version"),
        (_reset_op, "without metadata"),
        (_shift_op, "not of this offset"),
        (_reset_half, "differs from H"),
    ],
)
def test_a_partition_stops_and_is_set_anew(
    installation: Installation, break_it: Callable[[Story], None], said: str
) -> None:
    """A clear error on /healthz; the others continue; `checker init` finds the offset."""
    story = Story(installation)
    story.run()
    break_it(story)
    before = story.delivered()

    daemon = installation.start(**LEAVING)
    assert said in daemon.stopped(BROKEN)
    story.decide_the_rest()

    on_sound = [each for each in story.delivered(SOUND) if each not in before]
    assert len(on_sound) == 2
    _expect_stopped(daemon, {BROKEN}, said)
    daemon.stop()

    plan = story.init(BROKEN)
    assert (plan["exact"], plan["committed"]) == (True, True)
    daemon = installation.start(**LEAVING)
    _expect_whole(story, daemon)


def test_deleted_offsets_stop_every_partition(installation: Installation) -> None:
    """Without its group's offsets the daemon delivers nothing, and says what to run."""
    story = Story(installation)
    story.run()
    group = installation.names.daemon_group
    installation.admin.delete_consumer_groups([group])[group].result()
    story.decide_the_rest()
    before = story.delivered()

    daemon = installation.launch(**LEAVING)
    for partition in (BROKEN, SOUND):
        assert "no committed offset" in daemon.stopped(partition)
    _expect_stopped(daemon, {BROKEN, SOUND}, "no committed offset")
    assert not daemon.status.snapshot().ready
    daemon.stop()
    assert story.delivered() == before

    for partition in (BROKEN, SOUND):
        assert story.init(partition)["exact"]
    daemon = installation.start(**LEAVING)
    _expect_whole(story, daemon)


def test_records_deleted_that_are_still_needed(installation: Installation) -> None:
    """A log start above H means that an undecided half is gone: that must not go unnoticed."""
    story = Story(installation)
    story.run()
    names = installation.names
    lost = story.undecided.pop(BROKEN)
    where = TopicPartition(names.half, BROKEN, lost.offset + 1)
    installation.admin.delete_records([where])[where].result()

    daemon = installation.start(**LEAVING)
    assert "below the log start" in daemon.stopped(BROKEN)
    daemon.stop()
    story.init(BROKEN)

    daemon = installation.start(**LEAVING)
    story.decide_the_rest()
    story.commit_one(BROKEN)
    _expect_whole(story, daemon)


@pytest.mark.parametrize("topic", ["half", "op"])
def test_a_recreated_topic_stops_its_partitions(installation: Installation, topic: str) -> None:
    """A topic that was created again under a running daemon is not read as the old one."""
    story = Story(installation)
    daemon = installation.start(**LEAVING)
    for partition in (BROKEN, SOUND):
        story.commit_one(partition)
        installation.await_marker(partition)
    name = getattr(installation.names, topic)
    installation.delete(name)
    installation.create(name, partitions=2, message_timestamp_type="LogAppendTime")

    for partition in (BROKEN, SOUND):
        assert daemon.stopped(partition)
    status, _ = daemon.healthz()
    assert status == 503
    daemon.stop()
    for partition in (BROKEN, SOUND):
        story.init(partition)

    daemon = installation.start(**LEAVING)
    for partition in (BROKEN, SOUND):
        story.commit_one(partition)
    _expect_whole(story, daemon)


def _expect_stopped(daemon: Daemon, partitions: set[int], said: str) -> None:
    status, body = daemon.healthz()
    assert status == 503
    assert not body["healthy"]
    assert set(body["partition_errors"]) == {str(each) for each in partitions}
    assert all(said in text for text in body["partition_errors"].values())
    assert daemon.metric("halfbridge_partitions_stopped") == len(partitions)


def _expect_whole(story: Story, daemon: Daemon) -> None:
    """All that was wanted is there exactly once, and all is well."""
    assert sorted(story.delivered(BROKEN, SOUND)) == sorted(story.wanted)
    until("all is well", lambda: daemon.healthz()[0] == 200, within_s=SETTLED_S)
    assert daemon.metric("halfbridge_partitions_stopped") == 0


def test_the_log_says_from_where_a_ledger_was_rebuilt(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Not how far the first kafka_txn after it came: who looks for a duplicate reads this."""
    installation.make()
    orders = installation.topic("orders")
    for _ in range(3):
        installation.pass_through(orders)
    with caplog.at_level(logging.INFO, logger="halfbridge.checker"):
        installation.start()
        assert len(installation.tail(orders).until(3)) == 3
        until("the rebuild is announced", lambda: "partition 0 rebuilt" in caplog.text)
    assert re.search(r"partition 0 rebuilt in \S+ s from H=0 O=0: ", caplog.text), caplog.text
