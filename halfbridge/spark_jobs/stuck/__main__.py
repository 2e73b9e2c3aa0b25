"""`python -m halfbridge.spark_jobs.stuck`."""

from halfbridge.spark_jobs.stuck.command import main

if __name__ == "__main__":
    main()
