"""An operator's decisions: what is asked for, what would happen, which decision is first."""
