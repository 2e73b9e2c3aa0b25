"""`halfbridge inbox`: made, shown, purged; and how long brokers say that messages stay."""

import json

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert

from halfbridge.cli import cli
from halfbridge.kafka.errors import ConfigError
from halfbridge.sql import Inbox
from halfbridge.sql.inbox import real_retention_ms
from tests.integration.installation import Installation
from tests.sql.databases import Database
from tests.sql.kafka_message import delivered

DAY_MS = 86_400_000
DELETION_MS = 12 * 60_000


def invoke(command: str, database: Database, *words: str) -> Result:
    """Run a command on a database."""
    return CliRunner().invoke(cli, ["inbox", command, "--url", database.url, *words])


@pytest.mark.feature
def test_the_table_is_made_shown_and_purged(database: Database) -> None:
    """In the lines of an operator, and as JSON."""
    for _ in range(2):
        made = invoke("create", database)
        assert (made.exit_code, made.output) == (0, "table halfbridge_inbox is there\n")
    assert invoke("show", database).output == "no marks\n"
    inbox = Inbox(database.engine(), group_id="billing")
    with database.engine().begin() as connection:
        assert inbox.once(connection, delivered())
        row = {"group_id": "billing", "transaction_id": "b", "message_index": 0}
        connection.execute(insert(inbox.table).values(**row, created_at_ms=0))
    assert invoke("show", database).output.startswith("billing: 2 marks, from ")
    (group,) = json.loads(invoke("show", database, "--json").output)["groups"]
    assert (group["group_id"], group["count"]) == ("billing", 2)
    purge = ("--group-id", "billing", "--older-than-ms", str(DAY_MS))
    done = invoke("purge", database, *purge, "--retention-ms", str(DAY_MS), "--json")
    assert json.loads(done.output) == {"deleted": 1}
    assert invoke("show", database).output.startswith("billing: 1 marks")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_mistakes_are_one_line(database: Database) -> None:
    """Each says what to do; a password is not shown."""
    purge = ("--group-id", "billing", "--older-than-ms", "10")
    for words, told in (
        (("show",), "no such table: halfbridge_inbox"),
        (("purge", *purge), "retention_ms or topics, one of the two"),
        (
            ("purge", *purge, "--retention-ms", "11"),
            "11 or more: a message can be read again for that long",
        ),
        (("show", "--url", "nonsense"), "(from --url) is not allowed"),
        (("show", "--url", "postgresql+psycopg://u:secret@127.0.0.1:1/x"), "u:***@127.0.0.1"),
        (("show", "--url", "oracle+nothing://"), "oracle"),
    ):
        command, *rest = words
        failed = invoke(command, database, *rest)
        assert failed.exit_code != 0
        assert told in failed.output
        assert "secret" not in failed.output
        assert "unexpected" not in failed.output


@pytest.mark.broker
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_brokers_say_how_long_messages_stay(installation: Installation, database: Database) -> None:
    """Retention, the segment that is written to, and the time of deletion; the greatest of all."""
    settings = {"retention_ms": str(7 * DAY_MS), "segment_ms": str(DAY_MS)}
    orders = installation.topic("orders", **settings)
    stock = installation.topic("stock", retention_ms="1000", segment_ms="1000")
    kept_ms = 8 * DAY_MS + DELETION_MS
    servers = installation.servers
    assert real_retention_ms([orders, stock], bootstrap_servers=servers) == kept_ms
    assert invoke("create", database).exit_code == 0
    words = ["--group-id", "billing", "--topic", orders, "--bootstrap-servers", servers]
    done = invoke("purge", database, *words, "--older-than-ms", str(kept_ms))
    assert (done.exit_code, done.output) == (0, "deleted 0\n")
    failed = invoke("purge", database, *words, "--older-than-ms", str(kept_ms - 1))
    assert failed.exit_code != 0
    assert f"{kept_ms} or more" in failed.output


@pytest.mark.broker
def test_what_is_kept_for_ever_is_never_purged(installation: Installation) -> None:
    """Nor what is compacted, or not there: nobody can tell when a message is gone."""
    forever = installation.topic("forever", retention_ms="-1")
    compacted = installation.topic("compacted", cleanup_policy="compact")
    for topic in (forever, compacted, installation.real("nothing")):
        with pytest.raises(ConfigError, match=topic):
            real_retention_ms([topic], bootstrap_servers=installation.servers)
