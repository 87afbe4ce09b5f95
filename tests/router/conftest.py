"""Validation as a server has it, made once for each file of tests."""

from collections.abc import Iterator

import pytest

from router.engine.validation import Validation
from router.text.tokenizer import Tokenizer
from tests.checks import FakeChecks
from tests.router.rig import SEED, VALIDATION_LIMITS
from tests.router.text import small_tokenizers


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.load(small_tokenizers.save(small_tokenizers.byte_level(), folder))
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def validation(tokenizer: Tokenizer) -> Validation:
    return Validation(VALIDATION_LIMITS, tokenizer, FakeChecks(), draw_seed=lambda: SEED)
