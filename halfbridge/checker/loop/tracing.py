"""The daemon's spans of OpenTelemetry: a delivery, and a check that is asked.

Each is in the trace of its transaction's first message, and linked to all of them. A transaction
whose messages carry no trace has no span. Nothing here decides or delays anything: an exception of
the user's OpenTelemetry set-up is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Link, SpanKind, get_current_span

from halfbridge.bridge.tracing import attributes, context_of, tracer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.plan import Check, DeadHalf, Plan


class WorkerTracing:
    """Makes the spans of a worker, with the tracer provider of the process."""

    def __init__(self) -> None:
        self._tracer = tracer_of(None)

    def delivered(self, plan: Plan, refused: Sequence[DeadHalf]) -> None:
        """Note that the kafka_txn with the deliveries of `plan` is committed."""
        dead = {each.half.metadata.transaction_id for each in refused}
        for one in plan.deliveries:
            if one.transaction_id not in dead:
                self._span("deliver", one.messages)

    def asked(self, check: Check) -> None:
        """Note that a check was sent to its producer group."""
        self._span("ask", (check.half,), check_number=check.check_number)

    def _span(self, name: str, halves: Sequence[HalfRead], **more: int) -> None:
        with suppress(Exception):
            bodies: list[Any] = [half.body for half in halves if half.body is not None]
            contexts = [context_of(body.headers()) for body in bodies]
            spans = [get_current_span(context).get_span_context() for context in contexts]
            links = [Link(span) for span in spans if span.is_valid]
            if not links:
                return
            metadata = halves[0].metadata
            about = attributes(
                name,
                "send",
                group=metadata.producer_group,
                topic=metadata.real_topic,
                transaction_id=metadata.transaction_id,
            )
            first = next(at for at, span in zip(contexts, spans, strict=True) if span.is_valid)
            self._tracer.start_span(
                f"{name} {metadata.real_topic}",
                first,
                kind=SpanKind.PRODUCER,
                links=links,
                attributes={**about, **{f"halfbridge.{key}": value for key, value in more.items()}},
            ).end()
