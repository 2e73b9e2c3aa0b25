"""`manage.py halfbridge_purge`: deletes rows of fence and inbox that nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS
from sqlalchemy.exc import SQLAlchemyError

from halfbridge.django.process import member
from halfbridge.kafka.errors import BridgeError
from halfbridge.sql import fence_purge
from halfbridge.sql.fence_table import FenceTable

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Deletes old rows of the fence, and old marks of one consumer group."""

    help = (
        "Delete rows of the fence that no check needs any more, and with --group-id old marks of a"
        " consumer group. Run it once a day. It may be interrupted and repeated."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the database, and what says how long rows are needed."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="A key of HALFBRIDGE.")
        parser.add_argument(
            "--dead-letter-retention-ms",
            type=int,
            default=fence_purge.DEAD_LETTER_RETENTION_MS,
            help="retention.ms of the dead-letter topic. [default: 30 days]",
        )
        parser.add_argument("--group-id", help="Consumer group whose old marks are deleted too.")
        marks = "With --group-id: "
        parser.add_argument(
            "--older-than-ms", type=int, default=0, help=f"{marks}least age of deleted marks."
        )
        parser.add_argument(
            "--retention-ms",
            type=int,
            help=f"{marks}longest time for which real topics keep a record; or --topic.",
        )
        parser.add_argument(
            "--topic",
            action="append",
            default=[],
            help=f"{marks}a real topic that the group reads, whose retention is read from the"
            " brokers. Give all of them; may be repeated.",
        )

    def handle(self, *_: Any, database: str, group_id: str | None, **given: Any) -> None:
        """Delete the rows, and say how many.

        Raises CommandError: the user corrects options or settings, or runs the command again, as it
        says.
        """
        if group_id is None and (given["older_than_ms"] or given["retention_ms"] or given["topic"]):
            raise CommandError("these options are about marks: give --group-id too")
        try:
            here = member(database)
            config = here.producer.config
            done = fence_purge.purge(
                FenceTable(here.engine),
                transaction_age_ms_max=config.transaction_age_ms_max,
                dead_letter_retention_ms=given["dead_letter_retention_ms"],
            )
            self.stdout.write(f"deleted {done.rows} rows of the fence")
            if group_id is not None:
                marks = here.inbox(group_id).purge(
                    older_than_ms=given["older_than_ms"],
                    retention_ms=given["retention_ms"],
                    topics=given["topic"],
                    bootstrap_servers=config.bootstrap_servers,
                    kafka=config.kafka,
                )
                self.stdout.write(f"deleted {marks} marks of {group_id}")
        except (BridgeError, SQLAlchemyError, ValueError) as error:
            raise CommandError(str(error)) from error
