"""Reads batch plans from the checkpoint of a stream: `offsets/N` is the plan of batch N.

The first line is a version, the second one has the time of day and settings. One line for each
source follows: the offsets up to which the batch reads. Plans with equal offsets are equal here.

Spark calls `commit` in a Python worker process on the driver's machine. This process has no
session, and only gets the number of the batch. So it asks the driver's JVM through Py4J, at the
address that `register` stores in the data source. Without an address (Spark Connect), a checkpoint
on a local file system is read as files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from halfbridge.spark_jobs.capabilities import java_class
from halfbridge.spark_jobs.sink.clients import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from py4j.java_gateway import JavaGateway, JavaObject, JVMView
    from pyspark.sql import SparkSession

    # Returns the content of a file by its name below the checkpoint; None if it is missing.
    Read = Callable[[str], bytes | None]

# The first two lines of a plan are its version and Spark's settings; one line per source follows.
_OFFSETS_FROM_LINE = 2
_NO_OFFSET = "-"
_SESSIONS = ("org.apache.spark.sql.classic.SparkSession", "org.apache.spark.sql.SparkSession")


class DriverAddress(NamedTuple):
    """Where the driver's JVM listens for Py4J, on its own machine. Stays on the driver."""

    port: int
    token: str


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of a batch, as far as it is known; empty for a batch write."""

    query_id: str = ""  # Spark's id of the query, which its checkpoint keeps
    # SHA-256 of the sources' offsets in the file `offsets/N` (the lines from the third on), in
    # hexadecimal; empty: not readable.
    plan_hash: str = ""
    hash_before: str = ""  # the same of `offsets/N-1`; also empty if there is no such file
    # `commits/N-1` exists: Spark has seen the commit of batch N-1 return.
    is_before_done: bool = False
    # How the plan that this driver runs differs from the files; empty: not at all, or not known.
    departure: str = ""


NO_PLAN = BatchPlan()


def address_of(spark: SparkSession) -> DriverAddress | None:
    """Return the address of the session's JVM; None in a Spark Connect client."""
    try:
        gateway: JavaGateway = spark.sparkContext._gateway  # noqa: SLF001  # Spark tells it nowhere else
        given = gateway.gateway_parameters
        return DriverAddress(int(given.port), str(given.auth_token))
    except Exception as error:  # noqa: BLE001  # Spark Connect has no context; it raises its own
        LOG.info("the driver's JVM cannot be asked about the checkpoint: %r", error)
        return None


def plan_of(
    query_id: str, batch_id: int, *, address: DriverAddress | None, location: str
) -> BatchPlan:
    """Return the plan of a batch that this driver runs, without the parts that cannot be read.

    `location` is the option checkpointLocation; empty if the session sets it.
    """
    try:
        if address is not None:
            return _by_the_driver(query_id, batch_id, address)
        if (read := _local(location, query_id)) is not None:
            return read_plan(read, query_id, batch_id)
    except Exception as error:  # noqa: BLE001  # Py4J, Hadoop, whatever store: none may fail a batch
        LOG.warning("the plan of batch %d cannot be read: %r", batch_id, error)
        return BatchPlan(query_id=query_id)
    LOG.warning(
        "the plan of batch %d cannot be read, for the driver's JVM cannot be asked: two drivers on"
        " one checkpoint are not distinguished. Spark Connect has no other way; else, register the"
        " sink with the session that starts the query",
        batch_id,
    )
    return BatchPlan(query_id=query_id)


def read_plan(
    read: Read,
    query_id: str,
    batch_id: int,
    *,
    starts_at: list[str] | None = None,
    ends_at: list[str] | None = None,
) -> BatchPlan:
    """Return the plan of a batch in the checkpoint, compared with the plan that the driver runs.

    `starts_at` and `ends_at` are the offsets of each source at which the driver began and ended the
    batch; None: not known.
    """
    plan = read(f"offsets/{batch_id}")
    before = read(f"offsets/{batch_id - 1}") if batch_id else None
    departure = ""
    if ends_at is not None and plan is not None and _offsets(plan) != _parsed(ends_at):
        departure = f"offsets/{batch_id} does not end where this driver's batch ends"
    elif starts_at is not None and before is not None and _offsets(before) != _parsed(starts_at):
        departure = f"offsets/{batch_id - 1} does not end where this driver's batch begins"
    return BatchPlan(
        query_id=query_id,
        plan_hash="" if plan is None else _hash(plan),
        hash_before="" if before is None else _hash(before),
        is_before_done=batch_id > 0 and read(f"commits/{batch_id - 1}") is not None,
        departure=departure,
    )


def _hash(plan: bytes) -> str:
    """Return the hash of a plan's offsets; empty for a file without offsets.

    The first lines are left out, because they contain the time of day, which differs between two
    drivers that plan the same rows.
    """
    offsets = plan.split(b"\n")[_OFFSETS_FROM_LINE:]
    return sha256(b"\n".join(offsets)).hexdigest() if offsets else ""


def _offsets(plan: bytes) -> list[object]:
    return _parsed(plan.decode().split("\n")[_OFFSETS_FROM_LINE:])


def _parsed(offsets: list[str]) -> list[object]:
    """Return offsets parsed, so that they compare equal in the formats of all Spark versions."""
    return [None if each == _NO_OFFSET else json.loads(each) for each in offsets]


def _by_the_driver(query_id: str, batch_id: int, address: DriverAddress) -> BatchPlan:
    from py4j.java_gateway import (  # noqa: PLC0415  (needs a JVM)
        GatewayParameters,
        JavaGateway,
    )

    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=address.port, auth_token=address.token)
    )
    try:
        return _asked(gateway.jvm, query_id, batch_id)
    finally:
        gateway.close()


def _asked(jvm: JVMView, query_id: str, batch_id: int) -> BatchPlan:
    """Return the plan of a batch from the driver's JVM.

    The JVM keeps each object that it has handed out until Py4J releases it, which happens when the
    last Python name of the object is gone: here, on return, while the connection still exists.
    """
    session = java_class(jvm, *_SESSIONS).getDefaultSession().get()
    # Queries of all sessions, because the query's session may not be the default one.
    running = session.sharedState().activeStreamingQueries()
    query = running.get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        raise LookupError(f"no query {query_id} runs in this driver")
    running_id, starts_at, ends_at = _running_batch(query)
    is_this = running_id == batch_id
    return read_plan(
        _hadoop(jvm, query),
        query_id,
        batch_id,
        starts_at=_running_offsets(query, starts_at) if is_this else None,
        ends_at=_running_offsets(query, ends_at) if is_this else None,
    )


def _running_batch(query: JavaObject) -> tuple[int, JavaObject, JavaObject]:
    """Return the number of the batch that a query runs, and the progress from where to where."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  (needs a JVM)

    try:
        context = query.getLatestExecutionContext()
    except Py4JError:  # Spark 3.5 has no such method, and keeps all of it at the query
        return query.currentBatchId(), query.committedOffsets(), query.availableOffsets()
    return context.batchId(), context.startOffsets(), context.endOffsets()


def _running_offsets(query: JavaObject, progress: JavaObject) -> list[str] | None:
    """Return a running query's offsets, one per source; None before its first offsets."""
    sources = query.sources()
    found = [progress.get(sources.apply(at)) for at in range(sources.size())]
    if not any(each.isDefined() for each in found):
        return None
    return [str(each.get().json()) if each.isDefined() else _NO_OFFSET for each in found]


def _hadoop(jvm: JVMView, query: JavaObject) -> Read:
    """Return what reads the checkpoint of a running query, with its session's credentials."""
    root = query.resolvedCheckpointRoot()
    settings = query.sparkSession().sessionState().newHadoopConf()

    def read(name: str) -> bytes | None:
        path = jvm.org.apache.hadoop.fs.Path(f"{root}/{name}")
        system = path.getFileSystem(settings)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    return read


def _local(location: str, query_id: str) -> Read | None:
    """Return what reads a checkpoint, if it is on this machine and belongs to the query."""
    parts = urlsplit(location)
    if not location or parts.scheme not in ("", "file"):
        return None
    root = Path(unquote(parts.path) if parts.scheme else location)

    def read(name: str) -> bytes | None:
        try:
            return (root / name).read_bytes()
        except FileNotFoundError:
            return None

    metadata = read("metadata")
    if metadata is None or json.loads(metadata).get("id") != query_id:
        return None
    return read
