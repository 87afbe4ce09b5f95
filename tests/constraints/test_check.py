"""What is told of texts: how far they stand, and what was expected there."""

from constraints.check import Judging, judge
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.walks import byte_vocabulary, demo_vocabulary, language_of


def test_what_may_follow_is_told_where_only_a_longer_token_is_legal() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'len(tokens(X)) == 1 and X in ["ab", "the"]')
    language = language_of(spec, byte_vocabulary())
    judged = Judging(language, byte_vocabulary(), by_tokens=True).judge("x")
    assert judged.failure is None
    assert (judged.accepted, judged.position, judged.num_legal) == (False, 0, 2)
    assert judged.expected == ("'a'", "'t'")


def test_a_phrase_that_speaks_of_tokens_does_not_have_them_counted() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'X in ["Once thex tokens(", "b"]')
    language = language_of(spec, demo_vocabulary())
    judged = judge(language, demo_vocabulary(), spec, ["Once there was"], 40)
    assert judged.judgements[0].position == len("Once the")
