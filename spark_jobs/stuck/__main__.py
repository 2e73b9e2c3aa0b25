"""`python -m spark_jobs.stuck`."""

from spark_jobs.stuck.command import main

if __name__ == "__main__":
    main()
