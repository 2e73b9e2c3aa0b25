"""Deletes the topics and groups of a test or a bench on a cluster that is used further.

There is no port for this, because client, daemon and sink delete no topic and no group.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, TimeoutError  # noqa: A004  # its own on 3.10
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from halfbridge.bridge.kafka.admin_client import AdminClient
from halfbridge.bridge.kafka.errors import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfbridge.bridge.failure import KafkaFailure

# Brokers delete within seconds; a busy broker has been seen to take ten.
_ADMIN_S = 30.0
_GROUP_POLL_S = 0.5


def delete_topics(bootstrap_servers: str, is_wanted: Callable[[str], bool]) -> None:
    """Delete the topics whose name `is_wanted` accepts.

    Raises:
        KafkaFailure: one topic could not be deleted; all others are deleted.
    """
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})
    try:
        doomed = [name for name in admin.list_topics(timeout=_ADMIN_S).topics if is_wanted(name)]
    except KafkaException as error:
        raise failure_of(error) from error
    futures = admin.delete_topics(doomed).values() if doomed else ()
    failures = [failure for each in futures if (failure := _failure(each)) is not None]
    if failures:
        raise failures[0]


def delete_groups(bootstrap_servers: str, groups: Iterable[str]) -> None:
    """Delete groups. Retries, because a worker that was cut off stays a member for its session.

    Raises:
        KafkaFailure: one group could not be deleted.
    """
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})
    for group in groups:
        deadline = monotonic() + _ADMIN_S
        while not _is_deleted(admin, group, is_last_try=monotonic() > deadline):
            sleep(_GROUP_POLL_S)


def _failure(future: Any) -> KafkaFailure | None:
    try:
        future.result(_ADMIN_S)
    except (KafkaException, TimeoutError, CancelledError) as error:
        return failure_of(error)
    return None


def _is_deleted(admin: Any, group: str, *, is_last_try: bool) -> bool:
    try:
        admin.delete_consumer_groups([group])[group].result(_ADMIN_S)
    except KafkaException as error:
        failure: KafkaFailure = failure_of(error)
        if failure.code == KafkaError.GROUP_ID_NOT_FOUND:
            return True
        if failure.code != KafkaError.NON_EMPTY_GROUP or is_last_try:
            raise failure from error
        return False
    return True
