"""What jobs read: which offsets of which topics, and what stands there, as columns."""
