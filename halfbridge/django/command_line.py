"""The `halfbridge` command with the settings of Django, in a process of its own.

A large search then takes no memory or time from the service, and a damaged record that ends the
process which reads it does not end the service.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.django.process import member
from halfbridge.serde.settings import to_plain, variable

if TYPE_CHECKING:
    from collections.abc import Sequence


def command_line(using: str | None, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words that start `halfbridge <words>`, and the environment to start it with.

    The setting HALFBRIDGE gives brokers, topic prefix, Kafka properties and key file for the
    database; options among `words` override it. Passwords are in the environment only.

    Raises ConfigError: the user corrects the setting that it names.
    """
    plain = to_plain(member(using).producer.config)
    given = {
        "bootstrap_servers": plain["bootstrap_servers"],
        "topic_prefix": plain["topic_prefix"],
        "kafka": json.dumps(plain["kafka"]),
        "key_file": plain["key_file"] or "",
    }
    variables = {variable(name): str(value) for name, value in given.items()}
    return [sys.executable, "-m", "halfbridge", *words], {**environment.variables(), **variables}
