"""Hypothesis strategies and small values for the router's tests: worlds so small that sequences
collide, blocks run out and limits are met in almost every example."""

from collections.abc import Sequence

from hypothesis import strategies as st

from constraints.spec import ConstraintSpec, Kind
from proto.contract import Image, LogprobParams, SamplingParams, StopParams
from router.request.request import NO_KEY, ApiKey, Constraint, GenerateRequest

VOCAB_SIZE = 2
ANY_TEXT = Constraint(ConstraintSpec(Kind.REGEX, "(?s:.*)"))


def make_request(
    prompt_ids: tuple[int, ...] = (0, 1, 0),
    max_new_tokens: int = 4,
    *,
    ignore_eos: bool = False,
    prompt_logprobs: bool = False,
    prompt_from: int = 0,
    deadline_s: float | None = None,
    is_constrained: bool = False,
    output_ids: tuple[int, ...] = (),
    pause_after: int | None = None,
    key: ApiKey = NO_KEY,
    images: tuple[Image, ...] = (),
) -> GenerateRequest:
    """A greedy request whose text nobody reads."""
    return GenerateRequest(
        prompt_ids=prompt_ids,
        prompt_text="",
        sampling=SamplingParams(),
        stop=StopParams(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos),
        logprobs=LogprobParams(prompt=prompt_logprobs, prompt_from=prompt_from),
        constraint=ANY_TEXT if is_constrained else None,
        deadline_s=deadline_s,
        output_ids=output_ids,
        pause_after=pause_after,
        key=key,
        images=images,
    )


def make_image(start: int, span_len: int, shown: int = 0) -> Image:
    """One whose digest ends in `shown`, and is no token's id."""
    return Image(b"\xff" + bytes(14) + bytes([shown]), start, span_len, {})


# Stands in the places of images, and for nothing else.
PLACEHOLDER = 100


@st.composite
def prompts_with_images(
    draw: st.DrawFn, max_len: int, max_span_len: int
) -> tuple[tuple[int, ...], tuple[Image, ...]]:
    """Ids over two letters and a placeholder, and up to three images of two kinds."""
    prompt_ids: tuple[int, ...] = ()
    images: list[Image] = []
    for _ in range(draw(st.integers(0, 3))):
        prompt_ids += draw(token_ids(0, 5))
        span_len = draw(st.one_of(st.integers(1, 4), st.integers(1, max_span_len)))
        span_len = min(span_len, max_span_len, max_len - 1 - len(prompt_ids))
        if span_len < 1:
            break
        images.append(make_image(len(prompt_ids), span_len, draw(st.integers(200, 201))))
        prompt_ids += (PLACEHOLDER,) * span_len
    prompt_ids += draw(token_ids(1, 5))
    return prompt_ids[:max_len], tuple(image for image in images if image.stop <= max_len)


def token_ids(min_len: int = 1, max_len: int = 12) -> st.SearchStrategy[tuple[int, ...]]:
    """Sequences over two letters."""
    return st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=min_len, max_size=max_len).map(tuple)


def requests(
    max_total_len: int, keys: Sequence[ApiKey] = (NO_KEY,), max_span_len: int | None = None
) -> st.SearchStrategy[GenerateRequest]:
    """Requests of at most `max_total_len` (at least 2) tokens, prompt and output together.

    Half of them may fill that to the end, so that running ones fight for blocks. Some go on with
    an output that was made before, some pause. With `max_span_len` there are images of so many
    tokens at most.
    """

    def outputs(
        prompt_ids: tuple[int, ...], images: tuple[Image, ...] = ()
    ) -> st.SearchStrategy[GenerateRequest]:
        room = max_total_len - len(prompt_ids)
        return st.one_of(st.just(room), st.integers(1, room)).flatmap(
            lambda max_new_tokens: st.builds(
                make_request,
                st.just(prompt_ids),
                st.just(max_new_tokens),
                ignore_eos=st.booleans(),
                prompt_logprobs=st.sampled_from([False, False, False, True]),
                prompt_from=st.one_of(st.just(0), st.integers(0, len(prompt_ids) - 1)),
                is_constrained=st.booleans(),
                deadline_s=st.one_of(st.none(), st.none(), st.integers(0, 40).map(float)),
                output_ids=st.one_of(st.just(()), token_ids(0, max_new_tokens - 1)),
                pause_after=st.one_of(st.none(), st.none(), st.integers(1, 6)),
                key=st.sampled_from(keys),
                images=st.just(images),
            )
        )

    if max_span_len is not None:
        prompts = prompts_with_images(max_total_len - 1, max_span_len)
        return prompts.flatmap(lambda prompt: outputs(*prompt))
    return token_ids(1, max_total_len - 1).flatmap(outputs)
