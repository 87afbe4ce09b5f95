"""Classes of `contract.py` to messages of `generate.proto` and back, where their fields agree.

A field of the class is the message's field of the same name: a class converted here needs no code
per field in either tier. None is the absence of an `optional` field.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from constraints.spec import Kind, Whitespace
from proto import generate_pb2 as pb
from proto.contract import FinishReason, MaskEffect

M = TypeVar("M", bound=Message)
V = TypeVar("V")

FINISH_REASONS: Mapping[FinishReason | None, pb.FinishReason.ValueType] = {
    reason: pb.FinishReason.Value(f"FINISH_REASON_{'NONE' if reason is None else reason.name}")
    for reason in (None, *FinishReason)
    if reason not in (FinishReason.STOP_STRING, FinishReason.DEADLINE)
}
MASK_EFFECTS: Mapping[MaskEffect | None, pb.MaskEffect.ValueType] = {
    effect: pb.MaskEffect.Value(f"MASK_EFFECT_{'NONE' if effect is None else effect.name}")
    for effect in (None, *MaskEffect)
}
CONSTRAINT_KINDS: Mapping[Kind, pb.ConstraintKind.ValueType] = {
    kind: pb.ConstraintKind.Value(f"CONSTRAINT_KIND_{kind.name}") for kind in Kind
}
WHITESPACES: Mapping[Whitespace, pb.ConstraintWhitespace.ValueType] = {
    each: pb.ConstraintWhitespace.Value(f"CONSTRAINT_WHITESPACE_{each.name}") for each in Whitespace
}


def to_message(value: object, kind: type[M], **others: Any) -> M:
    """The message with the fields of a dataclass, and `others` beside them."""
    named = {name: getattr(value, name) for name in _names(type(value))}
    return kind(**named, **others)


def from_message(message: Message, kind: type[V]) -> V:
    """The dataclass with the message's fields of the same names."""
    readers = _readers(kind, message.DESCRIPTOR)
    return kind(**{name: read(message, name) for name, read in readers})


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_Read = Callable[[Any, str], object]


@cache
def _readers(kind: type, descriptor: Descriptor) -> tuple[tuple[str, _Read], ...]:
    return tuple((name, _reader(descriptor.fields_by_name[name])) for name in _names(kind))


def _reader(field: FieldDescriptor) -> _Read:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda message, name: dict(getattr(message, name))
    if field.is_repeated:
        return lambda message, name: tuple(getattr(message, name))
    if field.has_presence:
        return lambda message, name: getattr(message, name) if message.HasField(name) else None
    return getattr
