"""`oauth_cb`: tokens by a function of the user's, whatever that function does."""

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import pytest

from halfbridge.bridge.config import BridgeConfig
from halfbridge.kafka import tokens
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, ConfigError, KafkaFailure
from halfbridge.kafka.first_reads import find_damage
from halfbridge.kafka.tokens import with_tokens
from halfbridge.serde.settings import to_plain
from tests.kit.oauth import now_s

_LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}
_REFUSED = KafkaFailure(Code.AUTHENTICATION, "refused")
_HERE = "tests.unit.kafka.test_tokens"


def good(config: str) -> tuple[str, float]:
    """A token function as it should be."""
    return f"token-{config}", now_s() + 60


class Provider:
    """An object that is called."""

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        return "token", now_s() + 60, "me", {"logicalCluster": "lkc-1"}


not_callable = "text"


def _raising(_config: str) -> tuple[str, float]:
    raise SystemExit("no way")


def _made(function: object, reported: list[Any] | None = None) -> dict[str, Any]:
    """Return properties with a function behind which a client is not new any more."""
    report = [] if reported is None else reported
    made = with_tokens({**_LOGIN, "oauth_cb": function, "error_cb": report.append})
    made["oauth_cb"]("")
    return made


def test_a_path_names_a_function() -> None:
    """It is imported where the client is made, and gets sasl.oauthbearer.config."""
    ask = with_tokens({**_LOGIN, "oauth_cb": f"{_HERE}:good"})["oauth_cb"]

    token, expiry = ask("a=b")

    assert token == "token-a=b"
    assert expiry > now_s()


def test_an_object_may_be_called_and_may_name_principal_and_extensions() -> None:
    """What confluent-kafka takes passes unchanged."""
    ask = with_tokens({**_LOGIN, "oauth_cb": Provider()})["oauth_cb"]

    assert (ask("")[0], *ask("")[2:]) == ("token", "me", {"logicalCluster": "lkc-1"})


def test_other_clients_are_left_alone() -> None:
    """Without the property nothing is added."""
    assert with_tokens({"acks": "all"}) == {"acks": "all"}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("text", "Empty module|PYTHONPATH"),
        ("no_such_package:token", "no_such_package"),
        (f"{_HERE}:no_such_name", "no_such_name"),
        (f"{_HERE}:not_callable", "this is no function"),
    ],
)
def test_a_path_without_a_function_is_a_configuration_error(path: str, why: str) -> None:
    """One line names the property, its value and what is allowed."""
    with pytest.raises(ConfigError, match=why) as caught:
        system_ports().kafka.admin({**_LOGIN, "oauth_cb": path})

    assert f"oauth_cb={path}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", _LOGIN)
def test_without_its_mechanism_the_function_would_never_be_called(missing: str) -> None:
    """A client would wait for its token for ever, so it is refused."""
    login = {name: value for name, value in _LOGIN.items() if name != missing}

    with pytest.raises(ConfigError, match=r"sasl\.mechanisms=OAUTHBEARER"):
        with_tokens({**login, "oauth_cb": good})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "returned a NoneType; it must return"),
        ({"token": "secret"}, "returned a dict"),
        (("secret",), "returned 1 values"),
        ((b"secret", now_s() + 60), "returned no token"),
        (("", now_s() + 60), "returned no token"),
        (("two secrets", now_s() + 60), "returned no token"),
        (("secret", "soon"), "an expiry that is no number"),
        (("secret", float("nan")), "an expiry that is no number"),
        (("secret", 300), "an expiry in the past"),
        (("secret", (now_s() + 60) * 1000), "not milliseconds"),
        (("secret", now_s() + 60, None, {}), "a principal or extensions"),
        (("secret", now_s() + 60, "", {"auth": "x"}), "a principal or extensions"),
    ],
)
def test_nonsense_is_reported_by_the_name_of_the_function(answer: object, why: str) -> None:
    """The client gets an error, and who reads the log learns what to mend, and no secret."""
    reported: list[Any] = []
    made = _made(lambda _config: answer, reported)

    with pytest.raises(RuntimeError, match=why):
        made["oauth_cb"]("")
    made["error_cb"](_REFUSED)

    (failure,) = reported
    assert failure.code == Code.AUTHENTICATION
    assert failure.text.startswith(f"oauth_cb {_HERE}:")
    assert why in failure.text
    assert "secret" not in failure.text.replace("secrets", "")


def test_a_function_that_raises_ends_nothing() -> None:
    """SystemExit is an error like any other."""
    reported: list[Any] = []
    made = _made(_raising, reported)

    with pytest.raises(RuntimeError):
        made["oauth_cb"]("")
    made["error_cb"](_REFUSED)

    assert reported[0].text == f"oauth_cb {_HERE}:_raising raised SystemExit('no way')"


def test_errors_of_other_causes_stay_as_they_are() -> None:
    """A connection that fails has its own reason; so has a token that a broker refuses."""
    reported: list[Any] = []
    made = _made(_raising, reported)
    lost = KafkaFailure(Code.TRANSPORT, "refused")

    made["error_cb"](lost)
    assert reported == [lost]

    made = _made(good, reported)
    made["error_cb"](_REFUSED)
    assert reported == [lost, _REFUSED]


def test_a_function_that_hangs_is_left_alone_until_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One call waits, however often a token is asked for; its token is used once it is there."""
    monkeypatch.setattr(tokens, "ANSWER_S_MAX", 0.05)
    begun: list[str] = []
    may_return = Event()

    def slow(config: str) -> tuple[str, float]:
        begun.append(config)
        may_return.wait()
        return good(config)

    ask: Callable[[str], Any] = _made(slow)["oauth_cb"]
    with pytest.raises(RuntimeError, match=r"has not returned within 0\.05 s"):
        ask("2")
    assert begun == [""]

    monkeypatch.setattr(tokens, "ANSWER_S_MAX", 20.0)
    may_return.set()
    assert ask("3")[0] == "token-"
    assert ask("4")[0] == "token-4"


def test_a_name_shows_no_arguments() -> None:
    """The repr of a functools.partial has them, and they may be passwords."""
    reported: list[Any] = []
    made = _made(partial(_raising, "hunter2"), reported)

    with pytest.raises(RuntimeError):
        made["oauth_cb"]("")
    made["error_cb"](_REFUSED)

    assert reported[0].text.startswith("oauth_cb functools:partial raised")
    assert "hunter2" not in reported[0].text


@pytest.mark.parametrize("function", [good, _raising])
def test_clients_are_made_whatever_the_function_does(function: Callable[[str], Any]) -> None:
    """confluent-kafka would wait ten seconds for a first token, and could then hang for ever."""
    properties = {**_LOGIN, "bootstrap.servers": "127.0.0.1:1", "log_level": 0}

    admin = system_ports().kafka.admin({**properties, "oauth_cb": function})
    writer = system_ports().kafka.writer({**properties, "oauth_cb": function})

    admin.poll(0)
    writer.close()


def test_settings_of_python_code_may_have_a_function() -> None:
    """Another process cannot call it, and gets none."""
    config = BridgeConfig.from_environ(
        {}, bootstrap_servers="a:1", producer_group="g", kafka={"oauth_cb": good}
    )
    assert config.kafka["oauth_cb"] is good

    with pytest.raises(ConfigError, match=r"package\.module:function"):
        to_plain(config)
    with pytest.raises(ConfigError):
        BridgeConfig.from_environ({}, bootstrap_servers="a:1", kafka={"error_cb": good})


def test_a_child_process_does_not_read_with_a_function_of_this_one() -> None:
    """Partitions are not tried first; the caller's own reader meets what is damaged."""
    assert find_damage({**_LOGIN, "oauth_cb": good}, {("topic", 0): 0}) is None
