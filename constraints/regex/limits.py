"""The limits of our own automata, and the errors where a pattern or an expression exceeds them."""

# The most states of an expression's machine, over characters. Larger ones use another engine.
MAX_STATES = 20_000
# The most states times classes of characters: the size of a machine's table.
MAX_STEPS = 4_000_000
# The most states times places inside of characters: the size of a byte table.
MAX_NODES = 60_000
# The most states times places inside of characters, which are hundreds beside Unicode's classes,
# times distinguished counts of all measures: tables of 120 MB.
MAX_CELLS = 30_000_000
# The most cells times ways, for distances in tokens. Beyond it completions are searched.
MAX_TOKEN_STEPS = 40_000_000
# The largest bound that is counted towards.
MAX_COUNT = 1_000_000


class OutOfReach(Exception):
    """The expression needs another engine; `why` is for logs. Not raised outside the compiler."""


class TooManyStates(OutOfReach):
    """The expression is supported, but too large."""
