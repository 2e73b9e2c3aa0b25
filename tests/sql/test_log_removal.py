"""Whose a log subscription is, and how an operator removes one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sqlalchemy import inspect

from halfbridge.cli import cli
from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import OtherGroupError
from halfbridge.sql.log_subscription.positions import Positions
from tests.kit.waiting import until
from tests.sql.log_relay import GROUP, Relayed, relaying
from tests.sql.log_scene import KINDS, NAME

if TYPE_CHECKING:
    from click.testing import Result

    from tests.sql.databases import Database

pytestmark = pytest.mark.parametrize("database", KINDS, indirect=True)
STOP_S_MAX = 60.0


@pytest.fixture
def relayed(relayed: Relayed) -> Relayed:
    """A table with one order, and a relay that begins with a snapshot."""
    relayed.given["begin_at"] = "snapshot"
    relayed.orders.insert(1)
    return relayed


def remove(database: Database, *words: str) -> Result:
    """Run `halfbridge relay remove` for the subscription of these tests, in this process."""
    command = ["relay", "remove", "--url", database.url, "--subscription", NAME, *words]
    return CliRunner().invoke(cli, command)


def removed(database: Database, *words: str) -> dict[str, Any]:
    """Run the command, which succeeds; return what it says as JSON."""
    done = remove(database, "--json", *words)
    assert done.exit_code == 0, done.output
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.broker
def test_a_subscription_that_is_removed_begins_anew(relayed: Relayed) -> None:
    """Nothing goes without --yes or under a relay; then all of it goes, and a second time too."""
    database = relayed.orders.database
    is_postgresql = database.name == "postgresql"
    assert "there is no subscription" in remove(database, "--yes").stdout
    with relaying(**relayed.given) as relay:
        assert relayed.delivered(1) == [1]
        until("the log is read", lambda: relay.progress.is_open)
        if is_postgresql:
            refused = remove(database, "--yes")
            assert refused.exit_code == 1
            assert "is in use; stop the relay" in refused.output
    standing = [f"replication slot halfbridge_{NAME}", f"publication halfbridge_{NAME}"]
    for words in ((), ("--yes",)):
        if is_postgresql:  # its server notices a moment later that the relay has gone
            until("the slot is free", lambda: remove(database).exit_code == 0)
        said = removed(database, *words)
        assert (said["subscription"], said["producer_group"]) == (NAME, GROUP)
        assert said["position"]
        assert said["standing"] == (standing if is_postgresql else [])
        assert (said["staged"], said["removed"]) == (0, bool(words))
    said = removed(database, "--yes")
    assert (said["position"], said["standing"], said["removed"]) == (None, [], False)
    relayed.orders.insert(2)
    with relaying(**relayed.given):
        assert relayed.delivered(3) == [1, 1, 2]


@pytest.mark.broker
def test_a_subscription_belongs_to_one_producer_group(relayed: Relayed) -> None:
    """A relay of another group ends with both names, and moves nothing."""
    with relaying(**relayed.given):
        assert relayed.delivered(1) == [1]
    relayed.orders.insert(2)
    with (
        pytest.raises(OtherGroupError, match=f"another.*{GROUP}, which has subscription {NAME}"),
        relaying(**relayed.given, group="another") as relay,
    ):
        assert relay.ended.wait(STOP_S_MAX)
    with relaying(**relayed.given):
        assert relayed.delivered(2) == [1, 2]
    assert relayed.settled() == [1, 2]


def test_a_removed_row_gives_no_right_to_the_next_one(database: Database) -> None:
    """A relay that still knows a version of the old row does not meet it in the new one."""
    positions = Positions(database.engine(), owner="test")
    positions.create()
    versions = []
    for _ in range(3):
        versions.append(positions.begin(NAME, Position("1"), producer_group=GROUP).version)
        positions.forget(NAME)
    assert len(set(versions)) == len(versions)


def test_the_tables_say_what_their_columns_hold(database: Database) -> None:
    """Whoever looks at the tables in the database finds a word on every column."""
    positions = Positions(database.engine(), owner="test")
    positions.create()
    for table in positions.metadata.tables:
        columns = inspect(positions.engine).get_columns(table)
        assert columns
        assert [each["name"] for each in columns if not each.get("comment")] == []
