"""Run a Spark job of halfbridge in a process of its own and take its report, as schedulers do.

python examples/spark_job.py stuck --older-than 10m
"""

import json
import subprocess
import sys
from typing import Any

FINDINGS = 2  # the job worked, and its report is for somebody to read


def run_job(*words: str, timeout_s: float = 3600) -> tuple[Any, bool]:
    """Return a job's report, and whether it has findings.

    Its log goes to this program's. It raises where the job did not work: run it again, or correct
    what its last line says. Whether it has findings does not change by running it again.
    """
    command = [sys.executable, "-m", "halfbridge", "spark", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=timeout_s, check=False)  # noqa: S603 (the caller's words)
    if done.returncode not in (0, FINDINGS):
        raise RuntimeError(f"halfbridge spark {words[0]} ended with {done.returncode}: see the log")
    return json.loads(done.stdout), done.returncode == FINDINGS


if __name__ == "__main__":
    report, has_findings = run_job(*sys.argv[1:])
    print(json.dumps(report, indent=1))
    sys.exit(FINDINGS if has_findings else 0)
