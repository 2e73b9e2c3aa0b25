"""`python -m halfbridge.spark_jobs.replay`, and what spark-submit is given."""

from halfbridge.spark_jobs.replay import main

if __name__ == "__main__":
    main()
