"""`python -m spark_jobs.dedupe`, and what spark-submit is given."""

from spark_jobs.dedupe import main

if __name__ == "__main__":
    main()
