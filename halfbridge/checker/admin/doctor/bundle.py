"""A file for a report: everything that a maintainer needs, without payloads and secrets."""

from __future__ import annotations

import dataclasses
import json
import platform
import zipfile
from typing import TYPE_CHECKING, Any

from halfbridge.serde.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfbridge.checker.admin.doctor.codes import Finding
    from halfbridge.checker.admin.doctor.facts import Facts
    from halfbridge.checker.config import CheckerConfig

# Of a Kafka property the name is told, and never the value: many hold a secret in some set-up.
HIDDEN = "(hidden)"
# Brokers' settings that are told: those that findings look at.
_BROKER_SETTINGS = ("timeout.ms", "retention.minutes", "version", "min.isr", "replication.factor")


def finding_body(found: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as the JSON object that the command prints."""
    return {
        "ok": all(each.severity.value == "note" for each in found),
        "findings": [
            {**dataclasses.asdict(each), "severity": each.severity.value} for each in found
        ],
    }


def write_bundle(
    path: Path, facts: Facts, found: Sequence[Finding], config: CheckerConfig, *, version: str
) -> None:
    """Write a ZIP file of JSON files; it holds no record, no password and no Kafka property.

    Raises:
        OSError: the file cannot be written.
    """
    settings = {**to_plain(config), "kafka": dict.fromkeys(config.kafka, HIDDEN)}
    system = {
        "halfbridge": version,
        "python": platform.python_version(),
        "system": platform.platform(),
        "confluent_kafka": facts.host.kafka_client[0],
        "librdkafka": facts.host.kafka_client[1],
    }
    files = {
        "findings.json": finding_body(found),
        "facts.json": _plain(facts),
        "settings.json": settings,
        "versions.json": system,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, json.dumps(content, indent=2, default=str) + "\n")


def _plain(facts: Facts) -> dict[str, Any]:
    plain = dataclasses.asdict(facts)
    plain["topics"] = {name: seen._asdict() for name, seen in facts.topics.items()}
    plain["broker_settings"] = {
        broker: {key: value for key, value in told.items() if key.endswith(_BROKER_SETTINGS)}
        for broker, told in facts.broker_settings.items()
    }
    return plain
