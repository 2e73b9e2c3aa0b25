"""Measurements of the project itself: suites of loads, steps of a transaction, other systems."""
