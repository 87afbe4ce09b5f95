"""Constraints that are compiled before anybody's, so that none waits for what is made once.

A vocabulary's tables take up to a second, in which no step runs, and each engine has its own.
"""

import numpy as np

from constraints.after_thought import space_ids, special_ids, text_row
from constraints.compiler import Compiler
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary

# One for each engine.
_FIRST = (
    ConstraintSpec(Kind.JSON_SCHEMA, '{"items": {"type": "string"}, "uniqueItems": true}'),
    ConstraintSpec(Kind.LARK, 'start: "a" | "b"'),
    ConstraintSpec(Kind.WHERE, 'len(words(X)) < 3 and not "a" in X'),
)
_MAX_LEN = 64


def warm_up(vocabulary: Vocabulary) -> None:
    """Make what is kept with a vocabulary, and a mask of each engine."""
    compiler = Compiler(vocabulary)
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    for spec in _FIRST:
        output_state = OutputConstraintState(compiler.compile(spec), vocabulary, Budget(_MAX_LEN))
        output_state.take_forced()
        output_state.fill(row)
    text_row(vocabulary)
    special_ids(vocabulary)
    space_ids(vocabulary)
