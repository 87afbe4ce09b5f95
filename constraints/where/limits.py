"""How far the engine for `where` reaches, and how it says that it does not."""

# States of the machine of one expression, over characters. More is left to another engine.
MAX_STATES = 20_000
# States times classes of characters: the size of a machine's table.
MAX_STEPS = 4_000_000
# States times starts of a character: bytes are followed in these.
MAX_NODES = 60_000
# States times counts of all measures to distinguish: texts with bounds on several sides.
MAX_CELLS = 12_000_000
# Cells times ways on, for distances in tokens. Beyond it completions are searched, not known.
MAX_TOKEN_STEPS = 40_000_000
# Bounds beyond it are not counted towards.
MAX_COUNT = 1_000_000


class OutOfReach(Exception):
    """The expression needs another engine; `why` is for logs. Never seen outside the compiler."""


class TooManyStates(OutOfReach):
    """It is of a kind that is in reach, and too large."""
