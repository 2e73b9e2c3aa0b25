"""`python -m halfbridge.spark_jobs.dedupe`, and what spark-submit is given."""

from halfbridge.spark_jobs.dedupe import main

if __name__ == "__main__":
    main()
