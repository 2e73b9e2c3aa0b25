# %% [markdown]
# # How long messages take, and what is undecided
#
# A notebook in the percent format: Visual Studio Code and PyCharm open it, Jupyter does with
# jupytext, and Python runs it. It reads the topics of `HALFBRIDGE_BOOTSTRAP_SERVERS`, and writes
# two pictures to the current directory.

# %%
import os
from contextlib import ExitStack

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pyspark.sql import functions as F

from halfbridge.spark import read_transactions
from halfbridge.spark_jobs.session.local import spark_session

# The notebook's session if it has one already, else a local one, which ends with the notebook.
sessions = ExitStack()
spark = sessions.enter_context(spark_session("notebook"))

# %% [markdown]
# Three lines. A frame reads the topics at each action, so one that is used often is cached.

# %%
found = read_transactions(
    spark,
    bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    topics=os.environ.get("SHOP_TOPIC", "orders"),
    prefix=os.environ.get("HALFBRIDGE_TOPIC_PREFIX", ""),
).cache()
found.groupBy("producer_group", "state").count().orderBy("producer_group", "state").show()

# %% [markdown]
# ## Latency: from the half message to the visible one
#
# Spark makes a hundred numbers of all transactions. Both times are brokers' clocks.

# %%
SHARES = [number / 200 for number in range(1, 200)]
MS = F.unix_millis("delivered_timestamp") - F.unix_millis("half_timestamp")
delivered = found.where("state = 'delivered'")
((latency_ms,),) = delivered.select(F.percentile_approx(MS, SHARES, 10_000)).collect()

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.set(title="From half message to visible message", ylabel="of all transactions")
axes.set(xlabel="milliseconds", ylim=(0, 1))
if latency_ms:  # none was delivered yet
    axes.plot([max(each, 1) for each in latency_ms], SHARES)
    for share in (0.5, 0.95, 0.99):
        at = max(latency_ms[SHARES.index(share)], 1)
        axes.plot(at, share, "o", label=f"{share:.0%}: {at} ms")
    axes.legend(loc="lower right")
axes.set_xscale("log")
axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
axes.grid(visible=True, which="both", alpha=0.3)
figure.savefig("spark-latency.png", dpi=120)

# %% [markdown]
# ## Undecided transactions by age
#
# Young ones are normal: their local transactions run, or their checks are due. Old ones wait for
# somebody: `halfbridge tx list` says why.

# %%
AGES_S = {"10 s": 10, "30 s": 30, "1 min": 60, "2 min": 120, "5 min": 300, "10 min": 600}
AGES_S |= {"1 h": 3600, "1 day": 86_400}
OLDER = "older"
age_s = F.unix_timestamp(F.current_timestamp()) - F.unix_timestamp("half_timestamp")
age = F.lit(OLDER)
for name, limit_s in reversed(AGES_S.items()):
    age = F.when(age_s < limit_s, name).otherwise(age)
undecided = found.where("state = 'undecided'")
rows = undecided.groupBy("producer_group", age.alias("age")).count().collect()
counts = {(row["producer_group"], row["age"]): row["count"] for row in rows}

ages = [*AGES_S, OLDER]
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.set(title="Undecided transactions by age", xlabel="younger than", ylabel="transactions")
below = [0] * len(ages)
for group in sorted({group for group, _ in counts}):
    its = [counts.get((group, each), 0) for each in ages]
    axes.bar(ages, its, bottom=below, label=group)
    below = [low + more for low, more in zip(below, its, strict=True)]
axes.yaxis.set_major_locator(MaxNLocator(integer=True))
if counts:
    axes.legend(title="producer group")
figure.savefig("spark-undecided.png", dpi=120)

# %%
sessions.close()  # ends a local session, and no other
