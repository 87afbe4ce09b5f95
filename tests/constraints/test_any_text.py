"""Any tokens are legal where nothing is asked of a text, and it may end anywhere."""

import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.errors import IllegalToken
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import demo_vocabulary, language_of


def test_every_token_is_legal_and_so_is_every_end() -> None:
    vocabulary = demo_vocabulary()
    language = language_of(ConstraintSpec(Kind.TEXT, ""), vocabulary)
    matcher = language.matcher()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    for token_id in (5, 1, 0):
        matcher.fill_mask(row)
        assert allowed_ids(row).tolist() == list(range(len(vocabulary.tokens)))
        assert (matcher.is_complete, matcher.is_over, matcher.is_quick(0)) == (True, False, True)
        assert (matcher.shortest(9), matcher.deterministic_suffix()) == ((), b"")
        matcher.fork().advance(token_id)


def test_a_token_that_no_vocabulary_has_is_illegal() -> None:
    vocabulary = demo_vocabulary()
    matcher = language_of(ConstraintSpec(Kind.TEXT, ""), vocabulary).matcher()
    most = len(vocabulary.tokens)
    assert matcher.num_legal((0, most - 1, most, 0)) == 2
    with pytest.raises(IllegalToken):
        matcher.advance(most)
