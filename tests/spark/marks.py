"""Marks of whole files."""

import pytest

# Spark without code that it compiles first: most queries of these tests run once.
INTERPRETED = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("interpreted")]
