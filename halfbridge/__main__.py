"""`python -m halfbridge`: the same as the `halfbridge` command."""

from halfbridge.cli import main

if __name__ == "__main__":
    main()
