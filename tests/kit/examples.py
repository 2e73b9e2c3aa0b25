"""Hypothesis without a deadline, for all tests.

`tests/conftest.py` does not import it: a run without such tests, as `make test-core` is, has no
use for it, and its import takes as long as the collection of that run.
"""

# ruff: noqa: TID251  (the module that the rule names)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

__all__ = ["HealthCheck", "assume", "given", "settings", "st"]

# No test asserts on absolute time: on a busy machine an example takes as long as it takes.
settings.register_profile("halfbridge", deadline=None)
settings.load_profile("halfbridge")
