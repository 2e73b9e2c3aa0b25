"""What tests of halfbridge, and of services that use it, need: a real broker and a judge.

Nothing is imported here: pytest loads this package everywhere the distribution is installed.
"""
