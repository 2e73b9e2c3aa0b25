"""Creates the demo's real topics, for docker-compose.yml: `python -m halfbridge.demo.topics`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape
from halfbridge.demo.plan import TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARTITIONS = 4  # as `scenario` has them


def main(arguments: Sequence[str]) -> int:
    """Create the missing topics."""
    parser = argparse.ArgumentParser(prog="halfbridge.demo.topics")
    parser.add_argument("--bootstrap-servers", required=True)
    options = parser.parse_args(arguments)
    cluster = Cluster(options.bootstrap_servers)
    for topic in TOPICS:
        made = cluster.create(TopicShape(topic, _PARTITIONS, ()), replication_factor=1)
        sys.stdout.write(f"{'created' if made else 'there  '}   {topic}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
