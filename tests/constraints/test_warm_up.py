"""What a shard makes of its vocabulary before anybody waits for it."""

from constraints.vocabulary import Vocabulary
from constraints.warm_up import warm_up
from tests.constraints.cases import ROOT


def test_a_vocabulary_has_its_tables_before_its_first_constraint() -> None:
    vocabulary = Vocabulary.load(ROOT / "models" / "demo" / "tokenizer.json", None, [0])
    assert not vocabulary.kept
    warm_up(vocabulary)
    made = {getattr(make, "__name__", "") for make in vocabulary.kept}
    assert {"trie_of", "space_ids", "text_row", "special_ids"} <= made
