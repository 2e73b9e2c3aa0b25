"""Kafka Connect's REST interface: put a connector's configuration, and wait until it runs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNNING_S_MAX = 120.0  # a worker validates against the database, and rebalances, before tasks start
_CALL_S_MAX = 95.0  # a worker itself gives up after 90 s
_POLL_S = 0.2  # how late a state is seen
_OLD_FAILURE_S = 5.0  # tasks of a changed connector start within a rebalance
_RETRIES = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE)  # a rebalance, or a start
_TRACE_CHARS_MAX = 500  # of a failed task's first lines


class KafkaConnectError(RuntimeError):
    """Kafka Connect refused, did not answer, or the connector failed; the text says what to do.

    Attributes:
        status: The HTTP status with which a worker refused; None: no worker refused.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """States of a connector and of its tasks, as Kafka Connect names them.

    `trace` is the first cause of a failure.
    """

    name: str
    state: str
    tasks: tuple[str, ...]
    trace: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the connector and at least one task run, and no task does not."""
        return self.state == "RUNNING" and set(self.tasks) == {"RUNNING"}

    @property
    def has_failed(self) -> bool:
        """Return whether the connector or a task failed, which Kafka Connect does not restart."""
        return "FAILED" in (self.state, *self.tasks)


class ConnectRest:
    """Calls of one Kafka Connect cluster, at any worker's `url`.

    Raises:
        KafkaConnectError: not an http or https address, or one with a password, which errors would
            show; the user corrects it.
    """

    def __init__(self, url: str, *, call_s: float = _CALL_S_MAX) -> None:
        if not _is_address(url):
            raise KafkaConnectError(
                "the address of Kafka Connect is one such as http://127.0.0.1:8083, without a user"
                " and a password"
            )
        self.url = url.rstrip("/")
        self._call_s = call_s

    def is_ready(self) -> bool:
        """Return whether the worker has joined its group and answers.

        Raises:
            KafkaConnectError: it cannot be reached; try again later.
        """
        try:
            self._call("GET", "/health")
        except KafkaConnectError as error:
            if error.status is None:
                raise
            return False
        return True

    def names(self) -> tuple[str, ...]:
        """Return the names of all connectors, sorted."""
        return tuple(sorted(self._call("GET", "/connectors")))

    def state(self, name: str) -> ConnectorState:
        """Return a connector's state."""
        answer = self._call("GET", f"/connectors/{quote(name, safe='')}/status")
        return _state_of(name, answer)

    def states(self) -> tuple[ConnectorState, ...]:
        """Return the states of all connectors, sorted by name.

        Raises:
            KafkaConnectError: it cannot be reached (try again later), or something else answers at
                the address (the user corrects it).
        """
        return tuple(_state_of(name, each) for name, each in self._expanded("status"))

    def configs(self) -> dict[str, dict[str, str]]:
        """Return the configurations of all connectors by name; raises as `states`."""
        return {name: each["config"] for name, each in self._expanded("info")}

    def _expanded(self, part: str) -> list[tuple[str, Any]]:
        answer = self._call("GET", f"/connectors?expand={part}")
        try:
            return [(name, each[part]) for name, each in sorted(answer.items())]
        except (AttributeError, KeyError, TypeError) as error:
            raise KafkaConnectError(
                f"what answers at {self.url} is not Kafka Connect: correct the address."
            ) from error

    def apply(self, name: str, config: Mapping[str, str]) -> ConnectorState:
        """Make or change a connector and return when it runs.

        Raises:
            KafkaConnectError: the worker refuses the configuration, or the connector failed or did
                not run within RUNNING_S_MAX; the user must act.
        """
        deadline = time.monotonic() + RUNNING_S_MAX
        path = f"/connectors/{quote(name, safe='')}"
        while not self._accepts(f"{path}/config", config):
            if time.monotonic() > deadline:
                raise KafkaConnectError(
                    f"Kafka Connect at {self.url} has been rebalancing for {RUNNING_S_MAX:.0f} s:"
                    " see its log, then run the command again."
                )
            time.sleep(_POLL_S)
        state = ConnectorState(name, "not known yet", ())
        failed_at: float | None = None
        while time.monotonic() < deadline:
            try:
                state = self.state(name)
            except KafkaConnectError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, *_RETRIES):
                    raise
            if state.is_running:
                return state
            # A failure of the configuration before this one is shown until the tasks are new.
            if state.has_failed:
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _OLD_FAILURE_S:
                    break
            else:
                failed_at = None
            time.sleep(_POLL_S)
        shown = ", ".join(state.tasks) or "none"
        raise KafkaConnectError(
            f"connector {name} does not run: state {state.state}, tasks {shown}."
            f" {state.trace or 'The log of Kafka Connect has the cause.'} Correct the cause, then"
            f" run the command again; GET {self.url}{path}/status shows the state."
        )

    def delete(self, name: str) -> None:
        """Remove a connector; the slot of a PostgreSQL database stays. Absent: nothing to do."""
        try:
            self._call("DELETE", f"/connectors/{quote(name, safe='')}")
        except KafkaConnectError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _accepts(self, path: str, config: Mapping[str, str]) -> bool:
        """Put a configuration; False: the group is rebalancing, so it must be put again."""
        try:
            self._call("PUT", path, dict(config))
        except KafkaConnectError as error:
            if error.status not in _RETRIES:
                raise
            return False
        return True

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310  (the scheme was checked)
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            method=method,
        )
        try:
            # The scheme was checked.
            with urllib.request.urlopen(request, timeout=self._call_s) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:  # it is the answer, and holds the connection
                text = error.read().decode("utf-8", "replace")
            raise KafkaConnectError(
                f"Kafka Connect at {self.url} refused: {_message(text)}", status=error.code
            ) from error
        except (OSError, ValueError, HTTPException) as error:
            raise KafkaConnectError(
                f"Kafka Connect does not answer at {self.url}: {error}. Start it, or correct the"
                " address."
            ) from error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # ValueError: it is no number
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc


def _state_of(name: str, status: Mapping[str, Any]) -> ConnectorState:
    parts = [status["connector"], *status["tasks"]]
    traces = (part.get("trace", "") for part in parts)
    return ConnectorState(
        name,
        status["connector"]["state"],
        tuple(task["state"] for task in status["tasks"]),
        _first_cause(next(filter(None, traces), "")),
    )


def _message(text: str) -> str:
    try:
        return " ".join(str(json.loads(text)["message"]).split())
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:_TRACE_CHARS_MAX] or "without a reason"


def _first_cause(trace: str) -> str:
    """Return the last `Caused by` of a Java stack, which is what happened first, in one line."""
    lines = [line for line in trace.splitlines() if line and not line.startswith("\t")]
    causes = [line for line in lines if line.startswith("Caused by: ")] or lines[:1]
    return causes[-1].removeprefix("Caused by: ")[:_TRACE_CHARS_MAX] if causes else ""
