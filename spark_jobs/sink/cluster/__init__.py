"""Topics and clients of the sink."""
