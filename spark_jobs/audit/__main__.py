"""`python -m spark_jobs.audit`."""

from spark_jobs.audit.command import main

if __name__ == "__main__":
    main()
