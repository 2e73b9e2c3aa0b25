"""Requests that ask producer groups to decide."""
