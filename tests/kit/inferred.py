"""An acknowledgement without an offset, as the client gives it when it only infers one."""

from tests.kit.proxy import Act, Api, Rule

_DUPLICATE_SEQUENCE_NUMBER = 46

# The next Produce is answered so; the records are stored.
INFERRED = Rule(api=Api.PRODUCE, act=Act.FAIL, error=_DUPLICATE_SEQUENCE_NUMBER, times=1)
