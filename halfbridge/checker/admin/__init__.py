"""What an operator does to an installation: make its topics, check them, set a partition anew."""
