"""`manage.py halfbridge`: the command line on the Kafka of the setting HALFBRIDGE."""

from __future__ import annotations

import subprocess
import sys
from argparse import REMAINDER
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from halfbridge.django.command_line import command_line
from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Runs `halfbridge` with brokers, topic prefix and Kafka properties of Django's settings."""

    help = (
        "Run the halfbridge command on the Kafka of the setting HALFBRIDGE, such as `tx list`,"
        " `dead list` and `doctor`. The exit status is that of the command."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  (Django's name for "none")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the database, and the words of the command, which are not parsed here."""
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, help="A key of HALFBRIDGE; before the words."
        )
        parser.add_argument("words", nargs=REMAINDER, help="Of the halfbridge command.")

    def handle(self, *_: Any, database: str, words: list[str], **__: Any) -> None:
        """Run the command; SystemExit has its status.

        Raises CommandError: the user corrects the setting that it names.
        """
        try:
            command, environ = command_line(database, words)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stdout.flush()
        done = subprocess.run(command, env=environ, check=False)  # noqa: S603  # this very Python
        sys.exit(done.returncode)
