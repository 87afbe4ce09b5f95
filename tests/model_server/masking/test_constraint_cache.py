"""Languages are compiled once, and equal requests begin with the same guide, each with a copy."""

import shutil
import threading
from pathlib import Path

import pytest

from constraints.after_thought import OutputState
from constraints.compiler import MIB
from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError, DoesNotFit, Malformed
from constraints.matcher import Language
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule, Translation
from constraints.vocabulary import Vocabulary
from model_server.errors import ConstraintRefused
from model_server.masking.constraint_cache import ConstraintCache, GuideCache, GuideKey
from tests.model_server.masking.shard import DEMO, EOS_ID, VOCAB_SIZE, Shard, of, save


class Counting(ConstraintCache):
    """ConstraintCache that count how often one was asked for."""

    def __init__(self, max_bytes: int = 512 * MIB) -> None:
        super().__init__(Path(DEMO), VOCAB_SIZE, (EOS_ID,), max_bytes)
        self.num_compiled = 0

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        self.num_compiled += 1
        return super().compile(spec, translation)


def key(text: str = "[ab]{5}", max_len: int = 20) -> GuideKey:
    return GuideKey(of(Kind.REGEX, text), Budget(max_len), StopRule(), takes_forced=True)


@pytest.fixture
def languages() -> Counting:
    return Counting()


def token_of(vocabulary: Vocabulary, text: str) -> int:
    return vocabulary.tokens.index(text.encode())


def test_a_copy_moves_alone(languages: Counting) -> None:
    beginnings = GuideCache(languages)
    first, second = (beginnings.guide(key()) for _ in range(2))
    a = token_of(languages.vocabulary(), "a")
    for _ in range(5):
        first.advance(a)
    assert first.is_over
    assert not second.is_satisfied
    assert not beginnings.guide(key()).is_over
    assert languages.num_compiled == 1


def test_a_guide_leaves_with_the_language_that_it_holds() -> None:
    languages = Counting(max_bytes=1)
    beginnings = GuideCache(languages)
    for text, num_compiled in (("[ab]{5}", 1), ("[ab]{5}", 1), ("[ab]{6}", 2), ("[ab]{5}", 3)):
        beginnings.guide(key(text))
        assert languages.num_compiled == num_compiled


@pytest.mark.parametrize("other", [key("[ab]{6}"), key(max_len=30)], ids=repr)
def test_another_constraint_or_budget_begins_anew(languages: Counting, other: GuideKey) -> None:
    beginnings = GuideCache(languages)
    beginnings.guide(key())
    beginnings.guide(other)
    assert languages.num_compiled == 2


def test_those_who_come_at_once_wait_for_one(languages: Counting) -> None:
    beginnings = GuideCache(languages)
    guides: list[OutputState] = []
    threads = [
        threading.Thread(target=lambda: guides.append(beginnings.guide(key()))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len({id(guide) for guide in guides}) == 8
    assert languages.num_compiled == 1


@pytest.mark.parametrize(
    ("asked", "error"), [(key("a(b"), Malformed), (key(max_len=1), DoesNotFit)]
)
def test_what_cannot_begin_says_so_each_time(
    languages: Counting, asked: GuideKey, error: type[Exception]
) -> None:
    beginnings = GuideCache(languages)
    for _ in range(2):
        with pytest.raises(error):
            beginnings.guide(asked)
    assert languages.num_compiled == 2


def test_only_so_many_are_kept(languages: Counting) -> None:
    beginnings = GuideCache(languages)
    for max_len in range(10, 300):
        beginnings.guide(key(max_len=max_len))
    beginnings.guide(key(max_len=299))
    assert languages.num_compiled == 290
    beginnings.guide(key(max_len=10))
    assert languages.num_compiled == 291


def test_a_guide_that_has_moved_cannot_be_started_again(languages: Counting) -> None:
    guide = GuideCache(languages).guide(key())
    guide.advance(token_of(languages.vocabulary(), "a"))
    with pytest.raises(AssertionError, match="has accepted tokens"):
        guide.restart()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return Shard.load(save(tmp_path_factory.mktemp("model")))


def test_a_prepared_language_knows_a_text_that_a_guide_can_begin_with(shard: Shard) -> None:
    spec = ConstraintSpec(Kind.REGEX, "(known|beforehand)+")
    shard.languages.prepare(spec).result(30.0)
    language = shard.languages.compile(spec)
    assert isinstance(language, GrammarLanguage)
    assert language.first_completion is not None
    assert shard.text(language.first_completion) in {"known", "beforehand"}


def test_an_engine_that_breaks_refuses_a_constraint_and_nothing_else(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shard.languages._loading.result()

    class Panic(BaseException):
        pass

    def panic(*_: object) -> None:
        raise Panic("index out of range")

    with monkeypatch.context() as broken:
        broken.setattr(compiler, "compile", panic)
        with pytest.raises(ConstraintRefused, match="Panic: index out of range"):
            shard.languages.prepare(ConstraintSpec(Kind.REGEX, "abc")).result(30.0)
    assert not shard.languages.prepare(ConstraintSpec(Kind.REGEX, "abc")).result(30.0).was_cached


@pytest.mark.parametrize("broken", ["missing", "no json", "no byte tokens"])
def test_a_model_without_a_usable_tokenizer_says_so(tmp_path: Path, broken: str) -> None:
    if broken == "no json":
        (tmp_path / "tokenizer.json").write_text("{")
    elif broken == "no byte tokens":
        (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}}}')
    languages = ConstraintCache(tmp_path, 100, (EOS_ID,))
    with pytest.raises(ConstraintError, match="tokenizer"):
        languages.compile(ConstraintSpec(Kind.REGEX, "a"))
    with pytest.raises(ConstraintRefused, match="tokenizer"):
        languages.prepare(ConstraintSpec(Kind.REGEX, "a")).result(30.0)


def test_a_model_with_fewer_logits_than_tokens_says_so(tmp_path: Path) -> None:
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    with pytest.raises(ConstraintError):
        ConstraintCache(tmp_path, VOCAB_SIZE - 1, (EOS_ID,)).vocabulary()


def test_logits_without_a_token_are_never_drawn(tmp_path: Path) -> None:
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    vocabulary = ConstraintCache(tmp_path, VOCAB_SIZE + 100, (EOS_ID,)).vocabulary()
    assert vocabulary.num_words == (VOCAB_SIZE + 100 + 31) // 32


def test_a_vocabulary_is_waited_for_whether_it_can_be_read_or_not(tmp_path: Path) -> None:
    read = Counting()
    read.wait_read()
    assert read._loading.done()
    broken = ConstraintCache(tmp_path, VOCAB_SIZE, (EOS_ID,))
    broken.wait_read()
    with pytest.raises(ConstraintError, match="no token bytes"):
        broken.vocabulary()
