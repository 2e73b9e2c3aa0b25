"""Half records read again, for bodies that the ledger let go."""
