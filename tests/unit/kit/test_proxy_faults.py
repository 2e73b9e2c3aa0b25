"""Which fault hits which request."""

from __future__ import annotations

from tests.kit.proxy_faults import Act, Faults, Mode, Rule, rule_from
from tests.kit.proxy_frames import Api


def test_a_rule_hits_its_api_on_its_nodes_so_many_times() -> None:
    """Another kind of request, another broker or another act is left alone; then it is used up."""
    faults = Faults()
    faults.add(Rule(api=Api.END_TXN, act=Act.SWALLOW, nodes=(2,), times=2))

    assert faults.take(2, Api.PRODUCE, (Act.SWALLOW,)) is None
    assert faults.take(1, Api.END_TXN, (Act.SWALLOW,)) is None
    assert faults.take(2, Api.END_TXN, (Act.HOLD, Act.STRAND)) is None
    hits = [faults.take(2, Api.END_TXN, (Act.SWALLOW,)) is not None for _ in range(3)]

    assert hits == [True, True, False]
    assert faults.counts == {"swallow:26": 2}


def test_a_rule_without_limits_stays_until_it_is_cleared() -> None:
    """No nodes means all of them, no times means always."""
    faults = Faults()
    faults.add(Rule(api=Api.FETCH, act=Act.HOLD, delay_ms=5))

    assert all(faults.take(node, Api.FETCH, (Act.HOLD,)) for node in range(100))
    faults.clear_rules()
    assert faults.take(1, Api.FETCH, (Act.HOLD,)) is None


def test_a_rule_with_a_text_hits_what_holds_it() -> None:
    """A transactional id stands in its requests as it is."""
    faults = Faults()
    faults.add(Rule(api=Api.PRODUCE, act=Act.HOLD, text="scene-0"))

    assert faults.take(1, Api.PRODUCE, (Act.HOLD,), frame=b"..scene-1..") is None
    assert faults.take(1, Api.PRODUCE, (Act.HOLD,)) is None
    assert faults.take(1, Api.PRODUCE, (Act.HOLD,), frame=b"..scene-0..") is not None


def test_a_rule_with_a_share_hits_about_as_many() -> None:
    """Those that it spares are counted too."""
    faults = Faults()
    faults.add(Rule(api=Api.END_TXN, act=Act.HOLD, share=1 / 3))

    hits = sum(faults.take(1, Api.END_TXN, (Act.HOLD,)) is not None for _ in range(3000))

    assert 900 < hits < 1100
    assert faults.counts == {"hold:26": hits, "spared:26": 3000 - hits}


def test_links_are_open_unless_they_are_set() -> None:
    """A mode and a delay belong to one broker's traffic."""
    faults = Faults()
    faults.set_link([1], Mode.BLACKHOLE, 0)
    faults.set_link([3], Mode.OPEN, 40)

    assert [faults.mode(node) for node in (1, 2, 3)] == [Mode.BLACKHOLE, Mode.OPEN, Mode.OPEN]
    assert faults.delays_ms[3] == 40


def test_rules_travel_unchanged() -> None:
    """What the owner writes, the process reads."""
    rule = Rule(api=Api.END_TXN, act=Act.STRAND, nodes=(1, 3), delay_ms=250, times=4, error=9)
    assert rule_from(rule.to_plain()) == rule
