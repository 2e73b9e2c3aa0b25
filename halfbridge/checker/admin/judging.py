"""The cluster of commands that judge half and op records, or write some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.signatures import operator_signatures

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Ports


def judging_cluster(config: CheckerConfig, ports: Ports | None = None) -> Cluster:
    """Return the cluster that the settings name, with the keys of the operator's key file.

    Raises:
        ConfigError: the key file cannot be used; its owner corrects it.
    """
    return Cluster(
        config.bootstrap_servers,
        kafka=config.kafka,
        ports=ports,
        signatures=operator_signatures(config),
    )
