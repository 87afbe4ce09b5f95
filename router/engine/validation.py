"""Raw parameters and a prompt to a GenerateRequest, or the reason why not.

The rules and their order are TGI's, with one difference: a prompt and `max_new_tokens` that do
not fit together are refused, where TGI looks at the first 1024 new tokens alone. It knows no
HTTP; names are spelt as the caller says.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from constraints.spec import ConstraintSpec, Kind, StopRule, ThoughtRule
from proto.contract import Image, StopParams
from router.engine.constraints import ConstraintCheck
from router.request.errors import (
    ConstraintRefused,
    ContextExceeded,
    InvalidRequest,
    Unsupported,
    check_unicode,
    cut,
)
from router.request.images import splice
from router.request.parameters import (
    Limits,
    RawParams,
    check_parameters,
    logprob_params,
    sampling_params,
    stop_params,
    thought_rule,
)
from router.request.request import ApiKey, Constraint, GenerateRequest
from router.text.control_tokens import visible
from router.text.output_text import OutputText
from router.text.tokenizer import Tokenizer, check_fits

__all__ = ["Limits", "RawParams", "Validation"]

# Of a prompt that may be truncated, unless the model's context is larger.
_MAX_TOKENS = 1 << 18


def _draw_seed() -> int:
    return secrets.randbits(64)


class Validation:
    """Builds all GenerateRequests. `draw_seed` makes a u64 for a request that samples without one.

    Without `checks` every grammar is refused. `image_marker` stands for each image in a prompt's
    text; None: there are none.
    """

    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer,
        checks: ConstraintCheck | None = None,
        image_marker: str | None = None,
        *,
        draw_seed: Callable[[], int] = _draw_seed,
    ) -> None:
        self.limits = limits
        self._tokenizer = tokenizer
        self._checks = checks
        self._image_marker = image_marker
        self._marker_id = None if image_marker is None else marker_id_of(image_marker, tokenizer)
        self._draw_seed = draw_seed

    async def validate(
        self, text: str, raw: RawParams, *, add_special_tokens: bool = True, trace_id: str = ""
    ) -> GenerateRequest:
        """The request for a prompt of text. Raises InvalidRequest."""
        self.check(raw, is_empty=not text)
        check_unicode(text, raw.name("inputs"))
        if raw.truncate is None:
            await check_fits(self._tokenizer, text, self._max_input_len, raw.name("inputs"))
        token_ids = await self._tokenizer.encode_async(
            text,
            add_special_tokens=add_special_tokens,
            field=raw.name("inputs"),
            max_len=max(_MAX_TOKENS, self.limits.max_total_len),
        )
        prompt_ids, images = self._spliced(token_ids, raw)
        return await self._request(prompt_ids, visible(text), raw, trace_id, images)

    async def validate_ids(
        self, token_ids: Sequence[int], raw: RawParams, *, trace_id: str = ""
    ) -> GenerateRequest:
        """The request for a prompt of token ids. Raises InvalidRequest."""
        self.check(raw, is_empty=not token_ids)
        if raw.truncate is None:
            # Before each of them is checked: there may be millions.
            self._room(len(token_ids), raw)
        self._check_ids(token_ids, raw)
        self._check_markers(token_ids, raw)
        text = await self._tokenizer.decode_async(
            token_ids, skip_special_tokens=raw.skip_special_tokens
        )
        return await self._request(token_ids, text, raw, trace_id)

    def check(self, raw: RawParams, *, is_empty: bool) -> None:
        """Everything that can be checked before images are fetched and the prompt is tokenized.

        Raises InvalidRequest.
        """
        check_parameters(raw, self.limits)
        if is_empty:
            name = raw.name("inputs")
            raise InvalidRequest(f"`{name}` must not be empty", name)
        if raw.truncate is not None and not 1 <= raw.truncate <= self.limits.max_input_len:
            raise raw.refuse("truncate", f"between 1 and {self.limits.max_input_len}", raw.truncate)

    def _check_ids(self, token_ids: Sequence[int], raw: RawParams) -> None:
        last_id = self.limits.vocab_size - 1
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id <= last_id:
                rule = f"made of token ids between 0 and {last_id}, the model's vocabulary"
                raise raw.refuse("inputs", rule, token_id)

    def _check_markers(self, token_ids: Sequence[int], raw: RawParams) -> None:
        """Raises InvalidRequest for a marker without an image, which would stand for nothing."""
        num_images = len(raw.images)
        if self._image_marker is None:
            assert not num_images, "no image is taken"
            return
        num_markers = token_ids.count(self._marker_id)
        if num_markers != num_images:
            name = raw.name("inputs")
            raise InvalidRequest(
                f"`{name}` must have a marker, {self._image_marker}, for each of its"
                f" {num_images} images and no other. Given: {num_markers}, which in chats the"
                " template writes",
                name,
            )

    def _spliced(
        self, token_ids: Sequence[int], raw: RawParams
    ) -> tuple[Sequence[int], tuple[Image, ...]]:
        """The prompt with spans for its markers. Raises InvalidRequest."""
        self._check_markers(token_ids, raw)
        if not raw.images or self._marker_id is None:
            return token_ids, ()
        prompt_ids, images = splice(token_ids, self._marker_id, raw.images)
        num_left_out = 0 if raw.truncate is None else max(0, len(prompt_ids) - raw.truncate)
        if num_left_out > images[0].start:
            rule = f"at least {len(prompt_ids) - images[0].start}: an image is not cut"
            raise raw.refuse("truncate", rule, raw.truncate)
        return prompt_ids[num_left_out:], tuple(
            replace(image, start=image.start - num_left_out) for image in images
        )

    async def _request(
        self,
        token_ids: Sequence[int],
        text: str,
        raw: RawParams,
        trace_id: str,
        images: tuple[Image, ...] = (),
    ) -> GenerateRequest:
        if not token_ids:
            name = raw.name("inputs")
            raise InvalidRequest(f"`{name}` must not be empty: its text has no tokens", name)
        self._check_ids(token_ids, raw)
        # The answer follows from the end of a prompt.
        prompt_ids = tuple(token_ids if raw.truncate is None else token_ids[-raw.truncate :])
        max_new_tokens = self._room(len(prompt_ids), raw)
        if raw.prompt_from >= len(prompt_ids):
            rule = f"less than the prompt's {len(prompt_ids)} tokens"
            raise raw.refuse("prompt_from", rule, raw.prompt_from)
        if len(raw.output_ids) >= max_new_tokens:
            name = raw.name("max_new_tokens")
            num_made = len(raw.output_ids)
            rule = f"of fewer tokens than `{name}`, which is {max_new_tokens} and counts them"
            raise raw.refuse("output_ids", rule, f"{num_made} tokens")
        stop = stop_params(raw, self.limits, max_new_tokens)
        thought = thought_rule(raw, max_new_tokens)
        request = GenerateRequest(
            prompt_ids=prompt_ids,
            prompt_text=text,
            sampling=sampling_params(raw, self.limits, self._draw_seed),
            stop=stop,
            template_end_ids=() if raw.ignore_eos else self.limits.template_end_ids,
            logprobs=logprob_params(raw),
            constraint=await self._constraint(raw, stop, thought),
            skip_special_tokens=raw.skip_special_tokens,
            shown_ids=raw.shown_ids,
            deadline_s=raw.deadline_s,
            trace_id=trace_id,
            output_ids=raw.output_ids,
            cache_salt=self._salt(raw),
            key=raw.key,
            thought=thought,
            adapter_id=raw.adapter_id,
            images=images,
        )
        if request.output_ids:
            matched = OutputText(request, self._tokenizer).matched
            if matched is not None:
                rule = "an output that has not ended"
                raise raw.refuse("output_ids", rule, f"the stop string {matched!r} ends it")
        return request

    def _salt(self, raw: RawParams) -> bytes:
        """What the client says, whose key it has shown, and which load of an adapter it names."""
        if raw.adapter_id is None:
            return self._clients_salt(raw)
        # BLAKE2b's own parameters, so that no salt of a client's leads to the same digest.
        number = raw.adapter_id.to_bytes(blake2b.SALT_SIZE)
        return blake2b(self._clients_salt(raw), person=b"LoRA adapter", salt=number).digest()

    def _clients_salt(self, raw: RawParams) -> bytes:
        if raw.cache_salt == "":
            raise raw.refuse("cache_salt", "a text that is not empty", raw.cache_salt)
        owner = b"" if self.limits.shares_prefixes else raw.key.digest
        if raw.cache_salt is None:
            return owner
        return blake2b(owner + raw.cache_salt.encode("utf-8", "surrogatepass")).digest()

    async def _constraint(
        self, raw: RawParams, stop: StopParams, thought: ThoughtRule | None
    ) -> Constraint | None:
        """The constraint, if it can be kept within the request's tokens. Raises InvalidRequest."""
        has_budget = thought is not None and thought.max_len is not None
        if raw.grammar is None and not has_budget:
            return None
        name = raw.name("thought_budget" if raw.grammar is None else "grammar")
        if self._checks is None or not self.limits.takes_grammars:
            raise InvalidRequest("grammar is not supported", name)
        if raw.grammar is None:
            constraint = Constraint(ConstraintSpec(Kind.TEXT, ""))
        else:
            constraint = raw.grammar.constraint(name)
        max_len = stop.max_new_tokens
        not_enforced: list[str] = []
        for field, part in raw.grammar_parts:
            found = part.constraint(field)
            found = await _checked(self._checks, found, StopRule(), max_len, field, raw.key)
            not_enforced += found.not_enforced
            if found.spec.lenient:
                spec = replace(constraint.spec, lenient=True)
                constraint = replace(constraint, spec=spec)
        stops = StopRule(stop.stop_strings, stop.keep_stop_string, stop.stop_token_ids)
        whole = await _checked(self._checks, constraint, stops, max_len, name, raw.key, thought)
        return replace(whole, not_enforced=(*not_enforced, *whole.not_enforced))

    @property
    def _max_input_len(self) -> int:
        return min(self.limits.max_input_len, self.limits.max_total_len - 1)

    def _room(self, prompt_len: int, raw: RawParams) -> int:
        """max_new_tokens: as given, or all that the prompt leaves. Raises InvalidRequest.

        The message's order is TGI's; the field is the prompt wherever it alone is too long.
        """
        limits = self.limits
        inputs = raw.name("inputs")
        new = raw.name("max_new_tokens")
        max_new_tokens = raw.max_new_tokens
        if max_new_tokens is not None and prompt_len + max_new_tokens > limits.max_total_len:
            raise ContextExceeded(
                f"`{inputs}` tokens + `{new}` must be at most {limits.max_total_len}. "
                f"Given: {prompt_len} `{inputs}` tokens and {cut(str(max_new_tokens))} `{new}`",
                inputs if prompt_len > self._max_input_len else new,
                num_prompt_tokens=prompt_len,
                max_prompt_len=self._max_input_len,
                num_new_tokens=max_new_tokens,
                max_total_len=limits.max_total_len,
            )
        if prompt_len > self._max_input_len:
            raise ContextExceeded(
                f"`{inputs}` must have at most {self._max_input_len} tokens. Given: {prompt_len}",
                inputs,
                num_prompt_tokens=prompt_len,
                max_prompt_len=self._max_input_len,
            )
        if max_new_tokens is None:
            max_new_tokens = limits.max_total_len - prompt_len
        if raw.min_new_tokens is not None and raw.min_new_tokens > max_new_tokens:
            rule = f"at most `{new}`, which is {max_new_tokens}"
            raise raw.refuse("min_new_tokens", rule, raw.min_new_tokens)
        return max_new_tokens


def marker_id_of(marker: str, tokenizer: Tokenizer) -> int | None:
    """The one token of an image's marker; None: it has several, and none can be found."""
    token_ids = tokenizer.encode(marker, add_special_tokens=False)
    return token_ids[0] if len(token_ids) == 1 else None


async def _checked(
    checks: ConstraintCheck,
    constraint: Constraint,
    stops: StopRule,
    max_new_tokens: int,
    field: str,
    key: ApiKey,
    thought: ThoughtRule | None = None,
) -> Constraint:
    """The constraint as it was found in order, with places in `field` for its pointers.

    Raises InvalidRequest, which names `field`.
    """
    try:
        found = await checks.check(constraint, stops, max_new_tokens, key, thought)
    except ConstraintRefused as error:
        raise ConstraintRefused(
            f"`{field}`: {error}", error.reason, error.details, field
        ) from error
    except Unsupported as error:
        raise Unsupported(f"`{field}`: {error}", field) from error
    places = tuple(f"{field}#{pointer}" for pointer in found.not_enforced)
    return replace(found, not_enforced=places)
