"""What listens while nothing comes."""
