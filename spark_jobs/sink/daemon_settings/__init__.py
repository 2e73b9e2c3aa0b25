"""The daemon's limits, as far as the sink relies on them."""
