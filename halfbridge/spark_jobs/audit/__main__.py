"""`python -m halfbridge.spark_jobs.audit`."""

from halfbridge.spark_jobs.audit.command import main

if __name__ == "__main__":
    main()
