"""Planted defects of our own code: each breaks a promise, and the simulator must notice.

A mutation replaces one function of the product, or one guard of the brokers in memory. A mutation
says within how many seeds it is noticed.
"""

from __future__ import annotations

from tests.simulation.away_mutations import AWAY
from tests.simulation.client_mutations import BROKER, CLIENT
from tests.simulation.core_mutations import CORE
from tests.simulation.loop_mutations import LOOP
from tests.simulation.plain_mutations import PLAIN
from tests.simulation.signing_mutations import SIGNING
from tests.simulation.sink_mutations import SINK
from tests.simulation.writing_mutations import WRITING

MUTATIONS = (*CORE, *AWAY, *LOOP, *WRITING, *PLAIN, *CLIENT, *BROKER, *SINK, *SIGNING)
