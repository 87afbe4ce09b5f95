"""The caches of constraints, compiled for the tokens of this shard's model, and of first guides.

Reading a vocabulary takes up to five seconds, and holds the interpreter's lock. So a thread does it
beside the weights, and a shard is ready when it is done. A model whose tokens have no bytes serves
everything but constraints, which are refused with the reason.
"""

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from constraints.after_thought import OutputState, output_state
from constraints.compiler import MIB, Compiler
from constraints.errors import ConstraintError
from constraints.matcher import ANY_LEN, Language
from constraints.spec import Budget, ConstraintSpec, StopRule, Translation
from constraints.vocabulary import Vocabulary
from constraints.warm_up import warm_up
from model_server.errors import ConstraintRefused
from native.cpu_yield import CpuYield
from native.time_slice import use_long_time_slices
from processes.zygote import zygote
from proto.contract import OutputConstraint, Prepared

_log = logging.getLogger(__name__)

# Constraints compiled ahead at the same time: a slow one must not delay the others.
_NUM_COMPILING = 4
_MAX_GUIDES = 128


def _give_way() -> None:
    """Lower this thread's priority: steps come before what is compiled ahead."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        use_long_time_slices()
        zygote.give_way(threading.get_native_id())


class ConstraintCache:
    """Owner of the vocabulary and of the compiler's cache of `max_bytes`; shared by threads."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        end_ids: Sequence[int],
        max_bytes: int = 512 * MIB,
    ) -> None:
        """Starts to read the folder's tokenizer.json.

        vocab_size: width of the model's logits
        end_ids:    tokens that end a sequence of this model
        """
        self._loading: Future[Compiler] = Future()
        self._max_bytes = max_bytes
        self._cpu_yield = CpuYield()  # until what it needs is compiled, too
        self._preparing = ThreadPoolExecutor(_NUM_COMPILING, "compile", initializer=_give_way)
        load = threading.Thread(
            target=self._load, args=(folder, vocab_size, tuple(end_ids)), daemon=True
        )
        load.start()

    def wait_read(self) -> None:
        """Wait until the vocabulary is read, or known to be none."""
        self._loading.exception()

    def vocabulary(self) -> Vocabulary:
        """Raises ConstraintError when the model has none that can be masked."""
        return self._loading.result().vocabulary

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        """The language of a constraint, from the cache if it is there. Raises ConstraintError.

        translation: the router's translation of `spec`; else it is made here
        """
        return self._loading.result().compile(spec, translation)

    def is_cached(self, spec: ConstraintSpec) -> bool:
        """Whether the language of a constraint is in the cache."""
        return self._loading.result().is_cached(spec)

    def prepare(
        self, spec: ConstraintSpec, translation: Translation | None = None
    ) -> "Future[Prepared]":
        """Compile a constraint ahead of its request; the future may raise ConstraintRefused."""
        return self._preparing.submit(self._prepare_yielding, spec, translation)

    def _prepare_yielding(self, spec: ConstraintSpec, translation: Translation | None) -> Prepared:
        with self._cpu_yield.yielding():
            return self._prepare(spec, translation)

    def _prepare(self, spec: ConstraintSpec, translation: Translation | None) -> Prepared:
        try:
            compiler = self._loading.result()
            began_ns = time.perf_counter_ns()
            was_cached = compiler.is_cached(spec)
            language = compiler.compile(spec, translation)
            if not was_cached:
                # Every guide begins with it, and a step would wait for it. The language keeps it.
                language.matcher().shortest(ANY_LEN)
        except ConstraintError as error:
            raise ConstraintRefused(str(error)) from error
        # An engine's failure, panics included, must not end the shard.
        except BaseException as error:
            _log.exception("compiling a constraint of kind %s broke", spec.kind.value)
            raise ConstraintRefused(f"{type(error).__name__}: {error}") from error
        compile_ns = time.perf_counter_ns() - began_ns
        return Prepared(was_cached, compiler.num_bytes, compile_ns)

    def _load(self, folder: Path, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        try:
            self._cpu_yield = CpuYield.load()
            began_s = time.monotonic()
            vocabulary = Vocabulary.load(folder / "tokenizer.json", vocab_size, end_ids)
            warm_up(vocabulary)
            _log.debug(
                "read a vocabulary of %d tokens in %.1f s",
                len(vocabulary.tokens),
                time.monotonic() - began_s,
            )
            self._loading.set_result(Compiler(vocabulary, max_bytes=self._max_bytes))
        except ConstraintError as error:
            _log.warning("constraints cannot be served: %s", error)
            self._loading.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - every later compile raises it
            _log.error("constraints cannot be served", exc_info=error)
            self._loading.set_exception(ConstraintError(f"{type(error).__name__}: {error}"))


@dataclass(frozen=True, slots=True)
class GuideKey:
    """All that a guide depends on before the first token."""

    constraint: OutputConstraint
    budget: Budget
    stops: StopRule
    takes_forced: bool


class GuideCache:
    """Owner of the cached guides, least recently used first; shared by threads.

    A guide begins with a completion that fits the budget, and finding one can take longer than a
    step. Requests with the same constraint and budget begin alike: the first one makes the guide,
    those that come meanwhile wait for it, and later ones copy it.
    """

    def __init__(self, constraints: ConstraintCache) -> None:
        self._constraints = constraints
        self._lock = threading.Lock()
        self._futures: OrderedDict[GuideKey, Future[OutputState]] = OrderedDict()

    def guide(self, key: GuideKey) -> OutputState:
        """A copy of the guide. Raises ConstraintError; then nothing is cached."""
        with self._lock:
            future = self._futures.get(key)
            is_ours = future is None
            if future is None:
                future = self._futures[key] = Future()
                if len(self._futures) > _MAX_GUIDES:
                    self._futures.popitem(last=False)
            else:
                self._futures.move_to_end(key)
        if is_ours:
            self._make(key, future)
            self._drop_evicted()
        return future.result().restart()

    def _drop_evicted(self) -> None:
        """Guides hold their languages: those that have left the compiler's cache must leave too."""
        with self._lock:
            for key, future in list(self._futures.items()):
                if future.done() and not self._constraints.is_cached(key.constraint.spec):
                    del self._futures[key]

    def _make(self, key: GuideKey, future: "Future[OutputState]") -> None:
        constraint = key.constraint
        try:
            guide = output_state(
                self._constraints.compile(constraint.spec, constraint.translation),
                self._constraints.vocabulary(),
                key.budget,
                key.stops,
                constraint.thought,
                takes_forced=key.takes_forced,
            )
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)
            raise
        future.set_result(guide)
