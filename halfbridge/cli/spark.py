"""`halfbridge spark`: the Spark jobs, each in its own local session.

Exit status of a job: 0 done without findings; 1 failure or wrong usage; 2 findings.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches

import click

from halfbridge.cli.options import require
from halfbridge.spark_jobs.jobs.options import JobGroup

# Job -> the module whose `main` it is, and one line for --help.
JOBS = {
    "audit": (
        "halfbridge.spark_jobs.audit.command",
        "Check each transaction's delivery against its decision.",
    ),
    "dedupe": (
        "halfbridge.spark_jobs.dedupe",
        "Make a table without duplicates from an ingested table.",
    ),
    "ingest": (
        "halfbridge.spark_jobs.ingest",
        "Write real topics to Parquet or Delta, exactly once.",
    ),
    "replay": ("halfbridge.spark_jobs.replay", "Send rows of a table or a topic again."),
    "responder": ("halfbridge.spark.responder", "Answer checks for a txn_half sink."),
    "stuck": ("halfbridge.spark.stuck", "Show undecided transactions."),
}


class _LazyJobs(JobGroup):
    """Imports a job when it is used: pyspark takes a second to import, if it is installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        del ctx
        return sorted(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the job called `cmd_name`, imported now."""
        if cmd_name not in JOBS:
            near = get_close_matches(cmd_name, JOBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(JOBS))}"
            raise click.UsageError(f"no such job {cmd_name!r}; {hint}", ctx)
        require("a Spark job", "pyspark")
        command: click.Command = importlib.import_module(JOBS[cmd_name][0]).main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of jobs without importing them."""
        del ctx
        with formatter.section("Jobs"):
            formatter.write_dl((name, text) for name, (_, text) in sorted(JOBS.items()))


@click.group(cls=_LazyJobs, no_args_is_help=False, subcommand_metavar="JOB [ARGS]...")
def spark() -> None:
    """Run a Spark job in its own local session.

    Needs Java 17 or 21. On a cluster the same jobs run through spark-submit
    (docs/how-to/spark-cluster.md). Exit status: 0 done, 1 error, 2 findings.
    """
