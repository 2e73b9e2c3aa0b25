"""`python -m spark_jobs.ingest`, and what spark-submit is given."""

from spark_jobs.ingest import main

if __name__ == "__main__":
    main()
