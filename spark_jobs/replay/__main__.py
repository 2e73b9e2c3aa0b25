"""`python -m spark_jobs.replay`, and what spark-submit is given."""

from spark_jobs.replay import main

if __name__ == "__main__":
    main()
