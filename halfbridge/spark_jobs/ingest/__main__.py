"""`python -m halfbridge.spark_jobs.ingest`, and what spark-submit is given."""

from halfbridge.spark_jobs.ingest import main

if __name__ == "__main__":
    main()
