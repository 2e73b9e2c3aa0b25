"""Bodies of half records, let go by a plan and given back to it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfbridge.checker.core.events import HalfRead, JunkRead
    from halfbridge.checker.core.plan import Check, Plan
    from halfbridge.serde.headers import Headers


def whole_or_bare(message: Any) -> Any:
    """Return a record, without its headers where they cannot be read."""
    try:
        headers_of(message)
    except DecodeError:
        return WithoutHeaders(message)
    return message


def restore_plan(plan: Plan, read: Callable[[Iterable[int]], dict[int, Any]]) -> None:
    """Give the half records of `plan` back the bodies that the ledger let go.

    Args:
        plan: Changed in place.
        read: Half offsets -> records by offset.
    """
    missing = [half.offset for half in _halves(plan) if half.body is None]
    missing += [each.record.offset for each in plan.junk if each.record.body is None]
    if not missing:
        return
    bodies = read(missing)

    def whole(half: HalfRead) -> HalfRead:
        return half if half.body is not None else half._replace(body=bodies[half.offset])

    def whole_junk(record: JunkRead) -> JunkRead:
        if record.body is not None:
            return record
        return record._replace(body=whole_or_bare(bodies[record.offset]))

    plan.deliveries[:] = [
        one._replace(messages=tuple(map(whole, one.messages))) for one in plan.deliveries
    ]
    plan.dead[:] = [
        one if one.by_reference else replace(one, half=whole(one.half)) for one in plan.dead
    ]
    plan.junk[:] = [replace(one, record=whole_junk(one.record)) for one in plan.junk]
    plan.put_backs[:] = [replace(one, half=whole(one.half)) for one in plan.put_backs]
    plan.body_bytes = sum(half.body_bytes for half in _halves(plan))
    plan.body_bytes += sum(each.record.body_bytes for each in plan.junk)


def let_go_plan(plan: Plan) -> None:
    """Let the half records' bodies of `plan` go, until `restore_plan`; ops' bodies stay."""

    def bare(half: HalfRead) -> HalfRead:
        return half._replace(body=None)

    plan.deliveries[:] = [
        one._replace(messages=tuple(map(bare, one.messages))) for one in plan.deliveries
    ]
    plan.dead[:] = [replace(one, half=bare(one.half)) for one in plan.dead]
    plan.put_backs[:] = [replace(one, half=bare(one.half)) for one in plan.put_backs]
    plan.junk[:] = [
        one if one.is_op else replace(one, record=one.record._replace(body=None))
        for one in plan.junk
    ]
    plan.body_bytes = sum(one.record.body_bytes for one in plan.junk if one.is_op)


def restore_checks(
    checks: list[Check], read: Callable[[Iterable[int]], dict[int, Any]]
) -> list[Check]:
    """Return `checks` with all bodies there."""
    missing = [one.half.offset for one in checks if one.half.body is None]
    if not missing:
        return checks
    bodies = read(missing)
    return [
        one
        if one.half.body is not None
        else replace(one, half=one.half._replace(body=bodies[one.half.offset]))
        for one in checks
    ]


def _halves(plan: Plan) -> Iterable[HalfRead]:
    for delivery in plan.deliveries:
        yield from delivery.messages
    for dead in plan.dead:
        if not dead.by_reference:
            yield dead.half
    for put_back in plan.put_backs:
        yield put_back.half


class WithoutHeaders:
    """A record whose headers the client cannot read: key and value are kept, and not the headers.

    These may be of any size, which nobody can tell.
    """

    def __init__(self, message: Any) -> None:
        self._key: bytes | None = message.key()
        self._value: bytes | None = message.value()

    def key(self) -> bytes | None:
        """Return the record's key."""
        return self._key

    def value(self) -> bytes | None:
        """Return the record's value."""
        return self._value

    def headers(self) -> Headers | None:
        """Return None, for no headers."""
        return None
