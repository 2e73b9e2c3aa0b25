"""What all jobs share: options and exit statuses, errors of one line, progress, metrics."""
