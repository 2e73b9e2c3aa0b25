"""JVMs that Python starts: a Java that is new enough, jars by a lock file, class data archives."""
