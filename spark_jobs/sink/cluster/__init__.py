"""What the sink asks of the cluster."""
