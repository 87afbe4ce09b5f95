"""The parameters that clients may set, and the rule for each of them; grammars among them.

`RawParams` holds what an API received; the functions here turn it into the frozen values of
`request.py`, or raise InvalidRequest with the parameter's name, the rule and its value. They know
no HTTP, no prompt and no tokenizer; lengths that depend on the prompt are for
`engine/validation.py`.

A grammar's types are TGI's (`json`, `json_object`, `regex`, `json_schema`) and ours (`choice`,
`lark`, `gbnf`, `where`). It is checked here as far as its text alone allows; whether it compiles,
workers find out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from constraints.spec import ConstraintSpec, Kind, ThoughtRule, Whitespace
from proto.contract import LogprobParams, SamplingParams, StopParams
from router.request.errors import InvalidRequest, check_unicode, cut, wrong
from router.request.images import PreparedImage
from router.request.request import NO_KEY, AnswerParts, ApiKey, Constraint

GRAMMAR_TYPES: Mapping[str, Kind] = MappingProxyType(
    {
        "json": Kind.JSON_SCHEMA,
        "json_object": Kind.JSON_SCHEMA,
        "json_schema": Kind.JSON_SCHEMA,
        "regex": Kind.REGEX,
        "choice": Kind.CHOICE,
        "lark": Kind.LARK,
        "gbnf": Kind.GBNF,
        "where": Kind.WHERE,
    }
)


# JSON, and grammars that may have some inside.
_SPACED = (Kind.JSON_SCHEMA, Kind.LARK)
_WITH_LENIENT = "with `lenient` it is left to a check of the finished text"
_WITHOUT_STRICT = "without `strict` it is left to a check of the finished text"


@dataclass(frozen=True, slots=True)
class RawGrammar:
    """A grammar as it came: `kind` is known, `value` is any JSON.

    `whitespace`, `lenient`, `any_key_order` and `cuts` are those of `ConstraintSpec` and
    `Constraint`; None: unset. So is `is_part`. `strict` is OpenAI's: True asks for masks alone,
    False leaves what cannot be enforced to a check of the finished text, None stands for fields
    without it, for which `remedy` says how that is asked for. `not_enforced` are
    JSON Pointers of what is left to that check in any case. `parts` are those of `Constraint`.
    """

    kind: Kind
    value: object
    whitespace: Whitespace | None = None
    lenient: bool | None = None
    any_key_order: bool | None = None
    cuts: bool | None = None
    strict: bool | None = None
    remedy: str = _WITH_LENIENT
    not_enforced: tuple[str, ...] = ()
    parts: AnswerParts | None = None
    is_part: bool = False

    def constraint(self, name: str) -> Constraint:
        """The constraint; `name` is the parameter's, for errors. Raises InvalidRequest."""
        for word, value, kinds in (
            ("whitespace", self.whitespace, _SPACED),
            ("lenient", self.lenient, (Kind.JSON_SCHEMA,)),
            ("key_order", self.any_key_order and "any", (Kind.JSON_SCHEMA,)),
            ("strict", self.strict, (Kind.JSON_SCHEMA,)),
        ):
            if value and self.kind not in kinds:
                rule = f"`{word}` is said of JSON, and this is `{self.kind.value}`"
                raise _invalid(name, rule, value)
        spec = ConstraintSpec(
            self.kind,
            self._text(name),
            whitespace=self.whitespace or Whitespace.FLEXIBLE,
            lenient=bool(self.lenient),
            is_part=self.is_part,
            any_key_order=bool(self.any_key_order),
            strict=bool(self.strict),
        )
        return Constraint(
            spec,
            cuts=bool(self.cuts),
            may_relax=self.strict is False and self.lenient is None,
            remedy=self._remedy,
            not_enforced=self.not_enforced,
            parts=self.parts,
        )

    @property
    def _remedy(self) -> str:
        if self.kind is not Kind.JSON_SCHEMA or self.lenient:
            return ""
        return _WITHOUT_STRICT if self.strict else self.remedy

    def _text(self, name: str) -> str:
        if self.kind is Kind.JSON_SCHEMA:
            return self._schema(name)
        if self.kind is Kind.CHOICE:
            return self._choices(name)
        if not isinstance(self.value, str) or not self.value:
            rule = f"the value of `{self.kind.value}` must be a string, not empty"
            raise _invalid(name, rule, self.value)
        return self.value

    def _schema(self, name: str) -> str:
        """Any schema will do, with `properties` (which TGI insists on) or without.

        A string is kept as it is written: a key that stands twice in it is refused when it is
        compiled. In an object the body's parser has kept the last one.
        """
        written = schema = self.value
        if isinstance(written, str):
            try:
                schema = orjson.loads(written)
            except orjson.JSONDecodeError as error:
                rule = f"the value is a string that is not JSON: {error}"
                raise _invalid(name, rule, written) from error
        if not isinstance(schema, dict | bool):
            rule = (
                "the value must be a JSON schema: an object, true or false, or a string that holds"
                " one"
            )
            raise _invalid(name, rule, schema)
        return written.strip() if isinstance(written, str) else orjson.dumps(schema).decode()

    def _choices(self, name: str) -> str:
        choices = self.value
        rule = "the value of `choice` must be a list of strings, at least one"
        if not isinstance(choices, list) or not choices:
            raise _invalid(name, rule, choices)
        for choice in choices:
            if not isinstance(choice, str):
                raise _invalid(name, rule, choice)
        return orjson.dumps(list(dict.fromkeys(choices))).decode()


def _invalid(name: str, rule: str, value: object) -> InvalidRequest:
    return wrong(name, f"is not valid: {rule}", value)


_MAX_SEED = (1 << 64) - 1
_MAX_BIAS = 100.0
_MAX_STOP_TOKEN_IDS = 4096
# Shards compute in float32. Beyond these values a temperature or penalty, or a share of the
# distribution, acts as if it were the bound, but can overflow on the way.
_SMALLEST = 1e-6
_LARGEST = 1e6
WARPERS = ("temperature", "top_k", "top_p", "typical_p", "min_p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of this server. Lengths of prompts and outputs are in tokens.

    `vocab_size` is the model's. `max_stop_string_len` is in characters.
    `eos_token_ids` are the model's own ends; `template_end_ids` those of them that its chat
    template alone tells of, so that shards do not know them.
    `sampling_defaults` are RawParams' values for requests that leave them out, of the APIs that
    have such defaults.
    `max_duration_s`: seconds that a request may take from its arrival; None: as long as it likes.
    Without `takes_grammars` every grammar is refused. `shares_prefixes` by the prefix cache of
    requests with different keys.
    """

    max_input_len: int
    max_total_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    template_end_ids: tuple[int, ...] = ()
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_client_batch_size: int = 4
    max_stop_string_len: int = 1000
    max_duration_s: float | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    takes_grammars: bool = True
    shares_prefixes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawParams:
    """Parameters as a client set them; None: not set.

    `max_time` is in seconds from the request's arrival, `deadline_s` what follows from it and from
    all other limits of its time.

    `names` spells our words as the client's API does ("max_new_tokens" -> "max_tokens",
    "inputs" -> "prompt"), for messages. `max_top_n_tokens` and `max_stop_sequences` are what its
    API promises, whatever the server's own limit. `grammar_parts` are what `grammar` was made of,
    by the fields that hold them: each must be a grammar that can be kept by itself.

    `shown_ids` are special tokens that are part of the text though others are skipped: marks of the
    model's format, which the reader of answers looks for.

    `output_ids` are tokens of this output that were made before. `prompt_from` is the position in
    the prompt from which on `decoder_input_details` reports. `cache_salt` is a secret of those who
    share a prefix cache, `key` is the client's. `thought` is how a thought begins and ends in this
    answer, with its budget (`thought_budget` is the word for `names`); grammar and stop strings
    are for what follows it. `adapter_id` is that of a load of a LoRA adapter, which the routes know
    by the name that the client sent. `drawn_seed` is for a request without a seed. `images` are
    those of the prompt, for its markers in their order.
    """

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    truncate: int | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    max_top_n_tokens: int = 0
    max_stop_sequences: int = 0
    logit_bias: Mapping[int, float] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    decoder_input_details: bool = False
    raw_logprobs: bool = False
    keep_stop_string: bool = True
    skip_special_tokens: bool = True
    shown_ids: frozenset[int] = frozenset()
    grammar: RawGrammar | None = None
    grammar_parts: tuple[tuple[str, RawGrammar], ...] = ()
    watermark: bool = False
    max_time: float | None = None
    deadline_s: float | None = None
    output_ids: tuple[int, ...] = ()
    prompt_from: int = 0
    cache_salt: str | None = None
    key: ApiKey = NO_KEY
    thought: ThoughtRule | None = None
    adapter_id: int | None = None
    drawn_seed: int | None = None
    images: tuple[PreparedImage, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_sampling(self) -> bool:
        """True if requested, or if a parameter is set that means nothing otherwise."""
        return bool(self.do_sample) or any(getattr(self, word) is not None for word in WARPERS)

    def name(self, word: str) -> str:
        """`word` as the client spells it."""
        return self.names.get(word, word)

    def refuse(self, word: str, rule: str, value: object) -> InvalidRequest:
        """The error for a parameter that breaks its rule."""
        return InvalidRequest(
            f"`{self.name(word)}` must be {rule}. Given: {cut(str(value))}", self.name(word)
        )


@dataclass(frozen=True, slots=True)
class _Range:
    """A rule for one number; the bounds themselves belong to it unless `open`."""

    word: str
    low: float
    high: float = math.inf
    is_open: bool = False
    is_whole: bool = False

    def check(self, raw: RawParams) -> None:
        value = getattr(raw, self.word)
        if value is None:
            return
        inside = self.low < value < self.high if self.is_open else self.low <= value <= self.high
        # NaN is never inside; an infinite value is never meant.
        if not inside or value in (math.inf, -math.inf):
            raise raw.refuse(self.word, self._rule(), value)

    def _rule(self) -> str:
        if self.is_whole:
            return f"a whole number of at least {self.low:g}"
        if self.high == math.inf:
            return f"finite and {'greater than' if self.is_open else 'at least'} {self.low:g}"
        if self.is_open:
            return f"greater than {self.low:g} and less than {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"


# In TGI's order, ours beside their kin.
_NUMBERS = (
    _Range("temperature", 0, is_open=True),
    _Range("repetition_penalty", 0, is_open=True),
    _Range("frequency_penalty", -2, 2),
    _Range("presence_penalty", -2, 2),
    _Range("top_p", 0, 1, is_open=True),
    _Range("typical_p", 0, 1, is_open=True),
    _Range("min_p", 0, 1),
    _Range("top_k", 1, is_whole=True),
    _Range("max_new_tokens", 1, is_whole=True),
    _Range("min_new_tokens", 0, is_whole=True),
    _Range("max_time", 0, is_open=True),
    _Range("prompt_from", 0, is_whole=True),
)


def check_parameters(raw: RawParams, limits: Limits) -> None:
    """Raise InvalidRequest for the first rule that `raw` breaks whatever its prompt is.

    The order is TGI's: best_of, the numbers, stops, the seed, top_n_tokens.
    """
    _check_best_of(raw, limits)
    for number in _NUMBERS:
        number.check(raw)
    _check_stops(raw, limits)
    _check_logit_bias(raw, limits)
    if raw.seed is not None:
        if (raw.best_of or 1) > 1:
            raise raw.refuse("seed", f"absent when `{raw.name('best_of')}` > 1", raw.seed)
        if not 0 <= raw.seed <= _MAX_SEED:
            raise raw.refuse("seed", f"between 0 and {_MAX_SEED}", raw.seed)
    most = max(limits.max_top_n_tokens, raw.max_top_n_tokens)
    if raw.top_n_tokens is not None and not 0 <= raw.top_n_tokens <= most:
        raise raw.refuse("top_n_tokens", f"between 0 and {most}", raw.top_n_tokens)
    _check_output_ids(raw, limits)
    budget = None if raw.thought is None else raw.thought.max_len
    if budget is not None and budget < 0:
        raise raw.refuse("thought_budget", "a whole number of at least 0", budget)
    if raw.prompt_from and not raw.decoder_input_details:
        rule = f"0 without `{raw.name('decoder_input_details')}`"
        raise raw.refuse("prompt_from", rule, raw.prompt_from)


def sampling_params(raw: RawParams, limits: Limits, draw_seed: Callable[[], int]) -> SamplingParams:
    """How to sample, from checked parameters. `draw_seed` is called if a seed is needed."""
    bias = {token_id: float(value) for token_id, value in (raw.logit_bias or {}).items()}
    seed = raw.drawn_seed if raw.seed is None else raw.seed
    if seed is None:
        seed = draw_seed() if raw.is_sampling else 0
    return SamplingParams(
        do_sample=raw.is_sampling,
        temperature=_computable(raw.temperature) or 1.0,
        top_k=None if raw.top_k is None else min(raw.top_k, limits.vocab_size),
        top_p=_computable(raw.top_p),
        typical_p=_computable(raw.typical_p),
        min_p=None if raw.min_p is None else float(raw.min_p),
        repetition_penalty=_computable(raw.repetition_penalty) or 1.0,
        presence_penalty=float(raw.presence_penalty or 0.0),
        frequency_penalty=float(raw.frequency_penalty or 0.0),
        logit_bias=MappingProxyType(bias),
        seed=seed,
        watermark=raw.watermark,
    )


def stop_params(raw: RawParams, limits: Limits, max_new_tokens: int) -> StopParams:
    """When to stop, from checked parameters and the room that the prompt leaves."""
    template_end_ids = () if raw.ignore_eos else limits.template_end_ids
    return StopParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=raw.min_new_tokens or 0,
        ignore_eos=raw.ignore_eos,
        stop_token_ids=tuple(dict.fromkeys((*(raw.stop_token_ids or ()), *template_end_ids))),
        stop_strings=tuple(dict.fromkeys(raw.stop or ())),
        keep_stop_string=raw.keep_stop_string,
    )


def thought_rule(raw: RawParams, max_new_tokens: int) -> ThoughtRule | None:
    """How a thought begins and ends; a budget that the answer's length keeps anyway is none."""
    thought = raw.thought
    if thought is None or thought.max_len is None or thought.max_len < max_new_tokens:
        return thought
    return replace(thought, max_len=None)


def logprob_params(raw: RawParams) -> LogprobParams:
    """What to report, from checked parameters."""
    return LogprobParams(
        num_top_tokens=raw.top_n_tokens or 0,
        raw=raw.raw_logprobs,
        prompt=raw.decoder_input_details,
        prompt_from=raw.prompt_from,
    )


def _computable(value: float | None) -> float | None:
    return None if value is None else float(min(max(value, _SMALLEST), _LARGEST))


def _check_best_of(raw: RawParams, limits: Limits) -> None:
    if raw.best_of is None:
        return
    if not 1 <= raw.best_of <= limits.max_best_of:
        raise raw.refuse("best_of", f"between 1 and {limits.max_best_of}", raw.best_of)
    if raw.best_of > 1 and not raw.is_sampling:
        warpers = ", ".join(f"`{raw.name(word)}`" for word in WARPERS)
        rule = f"1 without sampling (`{raw.name('do_sample')}`, or any of {warpers})"
        raise raw.refuse("best_of", rule, raw.best_of)


def _check_stops(raw: RawParams, limits: Limits) -> None:
    name = raw.name("stop")
    stops = raw.stop or ()
    most = max(limits.max_stop_sequences, raw.max_stop_sequences)
    if len(stops) > most:
        raise InvalidRequest(
            f"`{name}` must have at most {most} strings. Given: {len(stops)}", name
        )
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= limits.max_stop_string_len:
            rule = f"strings of 1 to {limits.max_stop_string_len} characters"
            raise raw.refuse("stop", rule, f"{len(stop)} characters in string {index}")
        check_unicode(stop, name)
    token_ids = raw.stop_token_ids or ()
    if len(token_ids) > _MAX_STOP_TOKEN_IDS:
        name = raw.name("stop_token_ids")
        rule = f"`{name}` must have at most {_MAX_STOP_TOKEN_IDS} token ids"
        raise InvalidRequest(f"{rule}. Given: {len(token_ids)}", name)
    for token_id in token_ids:
        _check_token_id(raw, limits, "stop_token_ids", token_id)


def _check_logit_bias(raw: RawParams, limits: Limits) -> None:
    bias = raw.logit_bias
    if not bias:
        return
    # A mask has as many entries as the vocabulary; looking at each is for naming a wrong one.
    ids_fit = min(bias) >= 0 and max(bias) < limits.vocab_size
    if ids_fit and min(bias.values()) >= -_MAX_BIAS and max(bias.values()) <= _MAX_BIAS:
        return
    for token_id, value in bias.items():
        _check_token_id(raw, limits, "logit_bias", token_id)
        if not -_MAX_BIAS <= value <= _MAX_BIAS:
            rule = f"between {-_MAX_BIAS:g} and {_MAX_BIAS:g} for each token"
            raise raw.refuse("logit_bias", rule, f"{value} for token {token_id}")


def _check_output_ids(raw: RawParams, limits: Limits) -> None:
    """What was made before are tokens of the model, and none of them ended the output."""
    made = raw.output_ids
    if not made:
        return
    if len(made) >= limits.max_total_len:
        rule = f"of fewer than {limits.max_total_len} tokens"
        raise raw.refuse("output_ids", rule, f"{len(made)} tokens")
    eos_token_ids = () if raw.ignore_eos else limits.eos_token_ids
    ends = frozenset((*eos_token_ids, *(raw.stop_token_ids or ())))
    for index, token_id in enumerate(made):
        _check_token_id(raw, limits, "output_ids", token_id)
        if token_id in ends:
            raise raw.refuse(
                "output_ids", "an output that has not ended", f"token {token_id} at {index} ends it"
            )


def _check_token_id(raw: RawParams, limits: Limits, word: str, token_id: int) -> None:
    if not 0 <= token_id < limits.vocab_size:
        rule = f"of token ids between 0 and {limits.vocab_size - 1}"
        raise raw.refuse(word, rule, token_id)
