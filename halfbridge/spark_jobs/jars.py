"""`python -m halfbridge.spark_jobs.jars`: fetches the pinned jars, prints them for `--jars`."""

from halfbridge.spark_jobs.session.jars import main

if __name__ == "__main__":
    main()
