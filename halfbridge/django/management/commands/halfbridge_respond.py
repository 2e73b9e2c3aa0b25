"""`manage.py halfbridge_respond`: answers checks while no process of the service runs."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from halfbridge.django.process import producer
from halfbridge.kafka.errors import BridgeError
from halfbridge.signals import on_signals

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Has a producer that sends nothing, and so is a member of the group that answers."""

    help = (
        "Answer checks of the producer group from the fence, until SIGTERM or Ctrl-C. For services"
        " that do not always run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the database."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="A key of HALFBRIDGE.")

    def handle(self, *_: Any, database: str, **__: Any) -> None:
        """Answer until a signal comes.

        Raises CommandError: the user corrects settings, or the operator the cluster, as it says.
        """
        ends = Event()
        try:
            member = producer(database)
        except BridgeError as error:
            raise CommandError(str(error)) from error
        group = member.config.producer_group
        with member, on_signals(lambda _number: ends.set()):
            self.stdout.write(f"answering checks of {group} from database {database}")
            self.stdout.flush()
            ends.wait()
