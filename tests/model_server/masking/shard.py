"""A shard whose model has a real vocabulary, the demo model's tokens, and random weights.

And a language whose engine has a fault, among those that have none.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import models.demo
from constraints.bitmask import Bitmask
from constraints.matcher import Language, Matcher
from constraints.spec import ConstraintSpec, Kind, Translation
from constraints.vocabulary import Vocabulary
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.executor.executor import PagedModel
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.sampling.sampler import Sampler
from proto.contract import OutputConstraint
from tests.model_server.engine.driver import Driver, load

DEMO = Path(models.demo.__path__[0])
VOCAB_SIZE = 4096
EOS_ID = 0
NUM_BLOCKS = 256
_NUM_STATES = 16
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": False,
}


def save(folder: Path) -> Path:
    """A checkpoint of a small llama that says anything, with a tokenizer."""
    return _save(transformers.LlamaConfig(**_SIZES), folder)


def save_hybrid(folder: Path) -> Path:
    """As `save`, of a model whose first layer keeps a state."""
    config = transformers.Qwen3_5TextConfig(
        **_SIZES,
        head_dim=32,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention"],
    )
    return _save(config, folder)


def _save(config: Any, folder: Path) -> Path:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    shutil.copy(DEMO / "tokenizer.json", folder)
    return folder


@dataclass
class Shard:
    """What tests of constrained outputs need of a shard."""

    model: PagedModel
    languages: ConstraintCache

    @classmethod
    def load(cls, folder: Path, world: World | None = None, attention: str = "auto") -> "Shard":
        model = load(folder, world or World(), attention=attention)
        return cls(model, ConstraintCache(folder, model.vocab_size, model.eos_token_ids))

    def guides(
        self,
        num_threads: int = 2,
        fill_limit_s: float = 10.0,
        open_limit_s: float = 10.0,
        hold_s: float = 10.0,
    ) -> MaskScheduler:
        """Patient ones, since the machines of tests are busy."""
        return MaskScheduler(
            self.languages,
            self.model.vocab_size,
            self.model.eos_token_ids,
            num_threads=num_threads,
            fill_limit_s=fill_limit_s,
            open_limit_s=open_limit_s,
            hold_s=hold_s,
        )

    def runner(
        self,
        guides: MaskScheduler | None = None,
        world: World | None = None,
        *,
        runs_ahead: bool | None = None,
    ) -> Runner:
        world = world or World()
        sampler = None
        if world.is_first:
            sampler = Sampler(
                self.model.vocab_size, self.model.device, self.model.eos_token_ids, max_rows=8
            )
            guides = guides or self.guides()
        runner = Runner(self.model, sampler, world, guides=guides, runs_ahead=runs_ahead)
        runner.warmup(
            max_step_tokens=64,
            max_batch_size=8,
            max_total_len=None,
            num_blocks=NUM_BLOCKS,
            num_states=self.num_states,
        )
        return runner

    @property
    def num_states(self) -> int:
        """Slots for states."""
        return _NUM_STATES if self.model.state_bytes else 0

    def driver(self, guides: MaskScheduler | None = None, world: World | None = None) -> Driver:
        runner = self.runner(guides, world)
        block_size = self.model.block_size
        return Driver(runner, NUM_BLOCKS, block_size, num_states=self.num_states)

    def text(self, token_ids: Sequence[int]) -> str:
        """Of an output; an end token stands for nothing."""
        tokens = self.languages.vocabulary().tokens
        return b"".join(tokens[token_id] for token_id in token_ids).decode()


def of(kind: Kind, text: str, *, cuts: bool = False) -> OutputConstraint:
    """A constraint."""
    return OutputConstraint(ConstraintSpec(kind, text), cuts)


Check = Callable[[str], bool]


LETTERS = of(Kind.REGEX, "[a-z]+")
# Read by the languages below: the same letters, followed by an engine with a fault.
FAULTY = of(Kind.REGEX, "[a-z]+ ")


class FaultyMatcher:
    """A matcher that calls `fault` before each mask after the first few."""

    def __init__(self, matcher: Matcher, fault: Callable[[], None], num_good: int) -> None:
        self._matcher = matcher
        self._fault = fault
        self._num_good = num_good

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        if self._num_good <= 0:
            self._fault()
        self._num_good -= 1
        self._matcher.fill_mask(row, max_len)

    def fork(self) -> "FaultyMatcher":
        return FaultyMatcher(self._matcher.fork(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


class FaultyLanguage:
    """A language with such matchers."""

    def __init__(self, language: Language, fault: Callable[[], None], num_good: int) -> None:
        self._language = language
        self._fault = fault
        self._num_good = num_good

    def matcher(self) -> FaultyMatcher:
        return FaultyMatcher(self._language.matcher(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._language, name)


class FaultyLanguages(ConstraintCache):
    """The languages of a shard, one of which has a fault."""

    def __init__(
        self, languages: ConstraintCache, fault: Callable[[], None], num_good: int
    ) -> None:
        self._languages = languages
        self._fault = fault
        self._num_good = num_good

    def vocabulary(self) -> Vocabulary:
        return self._languages.vocabulary()

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        language = self._languages.compile(spec, translation)
        if spec != FAULTY.spec:
            return language
        return FaultyLanguage(language, self._fault, self._num_good)

    def is_cached(self, spec: ConstraintSpec) -> bool:
        return self._languages.is_cached(spec)
