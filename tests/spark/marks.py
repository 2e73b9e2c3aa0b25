"""Marks of whole files."""

from __future__ import annotations

import pytest

# Spark without code that it compiles first: most queries of these tests run once.
INTERPRETED = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("interpreted"),
]
