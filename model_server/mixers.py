"""Layers that carry a state from token to token: linear attention, state spaces, convolutions.

    find_mixers:  one pass -> the modules that keep states, and what states those are
    StatePool:    the states of all slots, one tensor for each state of a layer
    split_mixers: a flattened step -> each chunk by itself, and all single tokens as one batch

transformers hands such a module a cache, and the module asks it for a convolution's last columns
and for a recurrent state, and hands back what has become of them. Nothing else of a family is known
here.

    step:    | chunk of a | chunk of b | c | d | e | padding |
    mixer:     a alone      b alone      c, d, e     nothing

A state is written to another slot than it was read from: a step that is computed again, whatever
became of it, finds the state that it began with. Where slots stand is not known here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from model_server.errors import ArchitectureUnfit
from model_server.step import StepInputs
from model_server.zoo import HfModel, StepCache


class StateKey(NamedTuple):
    """One of a layer's states of a sequence; `number` counts those of one sort."""

    layer: int
    sort: Literal["convolution", "recurrent"]
    number: int


@dataclass(frozen=True, slots=True)
class StateShape:
    """Of one sequence's state. The last of a convolution's sizes counts its columns."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, states: Tensor) -> "StateShape":
        """Of a batch of them."""
        return cls(tuple(states.shape[1:]), states.dtype)

    @property
    def num_bytes(self) -> int:
        """That it takes."""
        return math.prod(self.sizes) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Mixer:
    """A module that keeps states, by its name."""

    name: str
    states: Mapping[StateKey, StateShape]


@dataclass(frozen=True, slots=True)
class Memory:
    """What the layers of a model remember of a sequence.

    storing: the layers that store keys and values; None: all of them
    """

    mixers: tuple[Mixer, ...] = ()
    storing: frozenset[int] | None = None

    @property
    def state_bytes(self) -> int:
        """Of one sequence's states."""
        return sum(shape.num_bytes for mixer in self.mixers for shape in mixer.states.values())


class _StateCache(StepCache):
    """The states that are being computed with. A sequence that begins has none yet."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__(positions)
        self.states: dict[StateKey, Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(StateKey(layer_idx, "convolution", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(StateKey(layer_idx, "recurrent", state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> Tensor:
        """The columns with those before them; the last ones are kept."""
        key = StateKey(layer_idx, "convolution", state_idx)
        before = self.states.get(key)
        num_kept = self._num_columns(key) or conv_kernel_size or conv_states.shape[-1]
        if before is None:
            num_missing = max(0, num_kept - conv_states.shape[-1])
            columns = nn.functional.pad(conv_states, (num_missing, 0))
        else:
            columns = torch.cat((before, conv_states), dim=-1)
        self.states[key] = columns[..., -num_kept:]
        return columns

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        self.states[StateKey(layer_idx, "recurrent", state_idx)] = recurrent_states
        return recurrent_states

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return any(
            layer_idx in (None, key.layer) and state_idx in (None, key.number)
            for key in self.states
        )

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def _num_columns(self, key: StateKey) -> int | None:
        """That are kept of a convolution; None: not known yet."""


class _Spy(_StateCache):
    """Notes which layers store keys and values."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__(positions)
        self.storing: set[int] = set()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        self.storing.add(layer_idx)
        return super().update(key_states, value_states, layer_idx)


def find_mixers(model: HfModel, token_ids: Tensor) -> Memory:
    """What the layers remember, found by a pass over one sequence.

    Raises ArchitectureUnfit for a model that asks something else of its cache.
    """
    positions = torch.arange(token_ids.shape[0], device=token_ids.device)
    spy = _Spy(positions)
    names: dict[nn.Module, str] = {module: name for name, module in model.module.named_modules()}
    mixers: list[Mixer] = []
    claimed: set[StateKey] = set()
    known: list[frozenset[StateKey]] = []  # when each of the modules that run now began

    def begin(*_: object) -> None:
        known.append(frozenset(spy.states))

    def end(module: nn.Module, *_: object) -> None:
        # Inner modules end first: what came to be while one ran is the innermost one's.
        new = spy.states.keys() - known.pop() - claimed
        claimed.update(new)
        if new:
            states = {key: StateShape.of(spy.states[key]) for key in sorted(new)}
            mixers.append(Mixer(names[module], states))

    handles = [module.register_forward_pre_hook(begin) for module in names]
    handles += [module.register_forward_hook(end) for module in names]
    try:
        model.paged_logits(token_ids, positions, positions[-1:], _attend_nothing, spy)
    except torch.OutOfMemoryError:
        raise
    # The classes of other people fail in every way there is.
    except Exception as error:
        raise ArchitectureUnfit(
            f"{model.facts.class_name} cannot be served: it wants more of its cache than keys,"
            f" values and states: {type(error).__name__}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return Memory(tuple(mixers), frozenset(spy.storing))


def _attend_nothing(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object
) -> Tensor:
    return query.new_zeros(*query.shape[:2], value.shape[2])


class StatePool:
    """The states of `num_states` slots, zeroed."""

    def __init__(self, memory: Memory, num_states: int, device: torch.device) -> None:
        self._tensors = {
            key: torch.zeros(num_states, *shape.sizes, dtype=shape.dtype, device=device)
            for mixer in memory.mixers
            for key, shape in mixer.states.items()
        }

    def num_columns(self, key: StateKey) -> int:
        """Of a convolution's state."""
        return self._tensors[key].shape[-1]

    def read(self, mixer: Mixer, slots: Tensor) -> dict[StateKey, Tensor]:
        """Copies of a mixer's states, one row for each slot."""
        return {key: self._tensors[key].index_select(0, slots) for key in mixer.states}

    def write(self, mixer: Mixer, slots: Tensor, states: Mapping[StateKey, Tensor]) -> None:
        """Replace a mixer's states."""
        for key in mixer.states:
            self._tensors[key].index_copy_(0, slots, states[key])


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Sequences that a mixer computes as one batch, of as many tokens each.

    rows:  of the flattened step
    reads: their slots; None: the sequence begins
    """

    rows: slice | Tensor
    reads: Tensor | None
    writes: Tensor

    def take(self, value: Any, num_tokens: int) -> Any:
        """The rows of a tensor [1, num_tokens, ...] as a batch; all else as it is."""
        if isinstance(value, tuple):
            return tuple(self.take(each, num_tokens) for each in value)
        if not isinstance(value, Tensor) or value.shape[:2] != (1, num_tokens):
            return value
        if isinstance(self.rows, slice):
            return value[:, self.rows]
        return value[0].index_select(0, self.rows).unsqueeze(1)

    def put(self, whole: Any, part: Any, num_tokens: int) -> Any:
        """Write a batch's results into those of the step; `whole` None: they are the first ones."""
        if isinstance(part, tuple):
            wholes = whole or (None,) * len(part)
            pairs = zip(wholes, part, strict=True)
            return tuple(self.put(each, result, num_tokens) for each, result in pairs)
        if not isinstance(part, Tensor):
            return part
        if whole is None:
            # Rows of padding are not computed, and must not be what no number can be.
            whole = part.new_zeros(1, num_tokens, *part.shape[2:])
        whole[0, self.rows] = part.flatten(0, 1)
        return whole


class MixerCache(_StateCache):
    """The cache of one step, in which mixers find the states of their sequences, group by group."""

    def __init__(self, step: StepInputs, pool: StatePool) -> None:
        super().__init__(step.positions)
        self._pool = pool
        self._num_tokens = step.num_tokens
        self._groups = _groups(step)

    def run(
        self,
        mixer: Mixer,
        forward: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        """A mixer's results for all rows of the step; what it is handed is cut by sequences."""
        num_tokens = self._num_tokens
        whole: Any = None
        for group in self._groups:
            reads = group.reads
            self.states = {} if reads is None else self._pool.read(mixer, reads)
            result = forward(
                *[group.take(value, num_tokens) for value in args],
                **{name: group.take(value, num_tokens) for name, value in named.items()},
            )
            self._pool.write(mixer, group.writes, self.states)
            whole = group.put(whole, result, num_tokens)
        return whole

    def _num_columns(self, key: StateKey) -> int:
        return self._pool.num_columns(key)


def _groups(step: StepInputs) -> list[_Group]:
    device = step.token_ids.device

    def on_device(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    groups: list[_Group] = []
    rows: list[int] = []
    reads: list[int] = []
    writes: list[int] = []
    first = 0
    for query_len, state in zip(step.query_lens, step.states, strict=True):
        # Of padding nobody reads anything.
        if state is not None and query_len == 1 and state.read_id is not None:
            rows.append(first)
            reads.append(state.read_id)
            writes.append(state.write_id)
        elif state is not None:
            read = None if state.read_id is None else on_device([state.read_id])
            write = on_device([state.write_id])
            groups.append(_Group(slice(first, first + query_len), read, write))
        first += query_len
    if rows:
        groups.append(_Group(on_device(rows), on_device(reads), on_device(writes)))
    return groups


def split_mixers(model: HfModel, mixers: Sequence[Mixer]) -> None:
    """Let the mixers run by sequences wherever they are handed a MixerCache."""
    for mixer in mixers:
        module = model.module.get_submodule(mixer.name)
        module.forward = _SplitForward(mixer, module.forward)


class _SplitForward:
    """Takes the place of a mixer's `forward`."""

    def __init__(self, mixer: Mixer, forward: Callable[..., Any]) -> None:
        self._mixer = mixer
        self._forward = forward

    def __call__(self, *args: Any, **named: Any) -> Any:
        # The name of the argument is another one in each release.
        for value in (*args, *named.values()):
            if isinstance(value, MixerCache):
                return value.run(self._mixer, self._forward, args, named)
        return self._forward(*args, **named)
