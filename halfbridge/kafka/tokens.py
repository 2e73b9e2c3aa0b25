"""Tokens of SASL/OAUTHBEARER by a user's function: the Kafka property `oauth_cb`."""

from __future__ import annotations

import math
import re
from concurrent.futures import wait
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import safe_repr
from halfbridge.kafka.errors import Code, ConfigError, KafkaFailure
from halfbridge.kafka.threads import SideThread, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

# Longest wait for the function. A new client of confluent-kafka (2.16) waits ten seconds for its
# first token, and may wait for ever if the function is called at the end of that time.
ANSWER_S_MAX = 5.0
# What a new client gets if the function has no token yet, and for how long: brokers refuse it, and
# librdkafka calls the function again within two seconds, then each ten seconds.
_NO_TOKEN = "no-token-from-oauth_cb"  # noqa: S105  (it opens nothing)
_NO_TOKEN_S = 1.0  # so that librdkafka calls the function again soon
# A later expiry is one in milliseconds, as some libraries return it.
_LIFE_S_MAX = 100 * 365 * 24 * 3600.0
_REFUSED = frozenset((Code.AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED))
_SHAPE = "(token, expiry in seconds since 1970), or these, a principal and a dict of extensions"
# What librdkafka accepts of a token, and of an extension's name and value (RFC 7628).
_TOKEN = re.compile(r"[!-~]+")
_NAME = re.compile(r"(?!auth\Z)[A-Za-z]+")
_VALUE = re.compile(r"[ -~\t\r\n]+")
_PAIR, _FOUR = 2, 4  # lengths of the tuple that _SHAPE describes


def with_tokens(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's properties, with `oauth_cb` as a function that never harms the client.

    The property is "package.module:function" or a function. It gets `sasl.oauthbearer.config`, and
    returns (token, expiry in seconds since 1970) or (token, expiry, principal, extensions). If it
    raises, returns something else, or nothing within ANSWER_S_MAX, then `error_cb` gets an
    error that names the function in place of the errors of refused log-ins, and librdkafka calls
    the function again.

    Raises:
        ConfigError: there is no such function, or the client would not call it; the user
            corrects the property.
    """
    made = dict(properties)
    given = made.get("oauth_cb")
    if given is None:
        return made
    mechanism = made.get("sasl.mechanisms", made.get("sasl.mechanism"))
    protocol = str(made.get("security.protocol", "")).lower()
    if mechanism != "OAUTHBEARER" or not protocol.startswith("sasl_"):
        allowed = "together with security.protocol=SASL_SSL and sasl.mechanisms=OAUTHBEARER"
        raise _wrong(_name(given), allowed)
    tokens = _Tokens(_function(given), _name(given))
    made["oauth_cb"] = tokens.ask
    if (report := made.get("error_cb")) is not None:
        made["error_cb"] = lambda error: report(tokens.explained(error))
    return made


def _function(given: object) -> Callable[[str], object]:
    if callable(given):
        return given
    module, _, name = str(given).partition(":")
    try:
        found = attrgetter(name)(import_module(module))
    except (Exception, SystemExit) as error:  # the module is the user's code
        allowed = (
            "package.module:function that can be imported here; PYTHONPATH may name its"
            f" directory ({error!r})"
        )
        raise _wrong(given, allowed) from error
    if not callable(found):
        raise _wrong(given, "package.module:function; this is no function")
    function: Callable[[str], object] = found
    return function


def _name(given: object) -> str:
    if isinstance(given, str):
        return given
    # No repr: that of a functools.partial has its arguments, such as a password.
    named: Any = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}:{named.__qualname__}"


def _wrong(given: object, allowed: str) -> ConfigError:
    return ConfigError(
        field="kafka", value=f"oauth_cb={given}", origin="the Kafka properties", allowed=allowed
    )


class _Tokens:
    """Asks a function for the tokens of one client, in librdkafka's background thread.

    The function runs in a thread of its own: librdkafka cannot close a client while it waits here.
    A call that is late is not repeated; its token is used when librdkafka asks again.

    No reference leads from here to the client: Python's collector does not see that the client
    refers to this.
    """

    def __init__(self, function: Callable[[str], object], name: str) -> None:
        self._function = function
        self._name = name
        self._call: Future[None] | None = None
        self._answer: Any = None
        self._is_new = True
        self._failure = ""

    def ask(self, config: str) -> tuple[Any, ...]:
        """Return what the function returns; a client's first call returns a token in any case."""
        try:
            token = self._checked(config)
        except Exception as error:
            self._failure = f"oauth_cb {self._name} {error}"
            if not self._is_new:
                raise  # librdkafka keeps the token that it has
            token = _NO_TOKEN, _now_s() + _NO_TOKEN_S
        else:
            self._failure = ""
        self._is_new = False
        return token

    def explained(self, error: Any) -> Any:
        """Return a client's error; one of a refused log-in says why there was no token."""
        failure = failure_of(error)
        if not self._failure or failure.code not in _REFUSED:
            return error
        return KafkaFailure(failure.code, self._failure, name=failure.name)

    def _checked(self, config: str) -> tuple[Any, ...]:
        """Return the function's answer; RuntimeError: what is wrong with it, without the token."""
        if self._call is None:
            thread = SideThread("halfbridge-token")
            self._call = thread.submit(self._run, config)
            thread.leave()
        if wait((self._call,), ANSWER_S_MAX).not_done:
            raise RuntimeError(f"has not returned within {ANSWER_S_MAX:g} s")
        call, self._call = self._call, None
        if (error := call.exception()) is not None:
            raise RuntimeError(f"raised {safe_repr(error)}")
        answer, self._answer = self._answer, None
        if problem := _problem(answer):
            raise RuntimeError(problem)
        token: tuple[Any, ...] = answer
        return token

    def _run(self, config: str) -> None:
        self._answer = self._function(config)


def _problem(answer: object) -> str:
    """Return what is wrong with a function's answer, or nothing. The text has no secret."""
    if not isinstance(answer, tuple):
        return f"returned a {type(answer).__name__}; it must return {_SHAPE}"
    if len(answer) not in {_PAIR, _FOUR}:
        return f"returned {len(answer)} values; it must return {_SHAPE}"
    token, expiry = answer[:_PAIR]
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        return "returned no token: it must be text of printable ASCII characters without spaces"
    if len(answer) == _FOUR and not _are_extensions(*answer[_PAIR:]):
        return f"returned a principal or extensions that are not allowed; it must return {_SHAPE}"
    return _expiry_problem(expiry)


def _expiry_problem(expiry: object) -> str:
    if not isinstance(expiry, (int, float)) or not math.isfinite(expiry):
        return "returned an expiry that is no number; it must be seconds since 1970"
    left_s = expiry - _now_s()
    if left_s <= 0:
        return "returned an expiry in the past; it must be seconds since 1970, and later than now"
    if left_s > _LIFE_S_MAX:
        return "returned an expiry in more than 100 years; it must be seconds, not milliseconds"
    return ""


def _now_s() -> float:
    """Return the wall clock's time, with which librdkafka compares an expiry."""
    return SystemClock.time_ms() / 1000


def _are_extensions(principal: object, extensions: object) -> bool:
    return (
        isinstance(principal, str)
        and "\0" not in principal
        and isinstance(extensions, dict)
        and all(
            isinstance(name, str)
            and isinstance(value, str)
            and _NAME.fullmatch(name)
            and _VALUE.fullmatch(value)
            for name, value in extensions.items()
        )
    )
