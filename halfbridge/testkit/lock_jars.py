"""Prints the lock file of a Kafka version, or of other jars, for `halfbridge.testkit.locked_jars`.

    python -m halfbridge.testkit.lock_jars 4.2.0 > halfbridge/testkit/kafka-4.2.0.lock
    python -m halfbridge.testkit.lock_jars GROUP:ARTIFACT:VERSION...

Ivy resolves what is named with its dependencies, so pyspark, whose wheel carries Ivy, must be
installed; the checksums are those of the jars that it fetched. For maintainers.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.session.ivy import resolve
from halfbridge.testkit.jars import coordinates_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def lock_lines(jars: Iterable[Path]) -> list[str]:
    """Return the lines of a lock file, in the order of `jars`.

    Args:
        jars: In Ivy's cache: `<group>/<artifact>/<type>s/<artifact>-<version>.jar`.
    """
    lines = []
    for jar in jars:
        artifact, group = jar.parents[1].name, jar.parents[2].name
        version = jar.stem.removeprefix(f"{artifact}-")
        body = jar.read_bytes()
        lines.append(f"{hashlib.sha256(body).hexdigest()} {len(body)} {group}:{artifact}:{version}")
    return lines


def main() -> None:
    """Print the lock file of the Kafka version, or of the coordinates, on the command line."""
    words = sys.argv[1:]
    wanted = words if ":" in words[0] else coordinates_of(words[0])
    jars = resolve(wanted, transitive=True)
    sys.stdout.write("\n".join(lock_lines(jars)) + "\n")


if __name__ == "__main__":
    main()
