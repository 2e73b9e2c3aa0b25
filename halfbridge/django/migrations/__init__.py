"""The tables of fence and inbox."""
