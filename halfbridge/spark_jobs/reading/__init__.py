"""How jobs read topics: which offsets, and the content of records as columns."""
