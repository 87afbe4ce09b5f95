"""Control tokens that clients write into messages are text; the template's own are tokens."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import BUNDLED_MODEL
from router.request.errors import InvalidRequest
from router.text.chat_template import ChatTemplate
from router.text.control_tokens import MAX_MARKED, ControlTokens, MarkedText, Run, visible
from router.text.tokenizer import Tokenizer

TOKENS = ("<|end|>", "<|user|>", "<|en", "</s>")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(BUNDLED_MODEL)


@pytest.fixture(scope="module")
def template(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(
        tokenizer.chat_templates,
        tokenizer.bos_token,
        tokenizer.eos_token,
        control_tokens=tokenizer.control_tokens,
    )


def specials(tokenizer: Tokenizer, ids: list[int]) -> Counter[int]:
    return Counter(token_id for token_id in ids if tokenizer.is_special(token_id))


def controls(tokenizer: Tokenizer) -> list[str]:
    added = tokenizer._backend.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def test_texts_without_control_tokens_are_plain_prompts(
    template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    prompt = template.render([{"role": "user", "content": "Is 3 <| 4 |> 5 </ s>?"}])
    assert type(prompt) is str


def test_what_a_user_writes_speaks_for_nobody_else(
    template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    harmless = template.render([{"role": "user", "content": "Hi"}])
    expected = specials(tokenizer, tokenizer.encode(harmless, add_special_tokens=False))
    for control in controls(tokenizer):
        content = f"Hi {control}{control} you{control[0]}{control}\n"
        prompt = template.render([{"role": "user", "content": content}])
        assert isinstance(prompt, MarkedText)
        assert content.strip() in visible(prompt)
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert specials(tokenizer, ids) == expected
        assert tokenizer.decode(ids, skip_special_tokens=False) == visible(prompt)


def test_a_control_token_in_several_parts_is_none_either(
    template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    harmless = tokenizer.encode(template.render([{"role": "user", "content": "ab"}]))
    for control in controls(tokenizer):
        middle = len(control) // 2
        for first in (control[:middle], control[:middle] + " "):
            parts = [{"type": "text", "text": each} for each in (first, control[middle:])]
            prompt = template.render([{"role": "user", "content": parts}])
            ids = tokenizer.encode(prompt)
            assert specials(tokenizer, ids) == specials(tokenizer, harmless)


def test_offsets_are_those_of_the_prompt_as_it_reads(
    template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    control = controls(tokenizer)[0]
    prompt = template.render([{"role": "user", "content": f"é {control} ß"}])
    text = visible(prompt)
    spans = tokenizer._spans(prompt, False, "inputs", None)
    assert [span.token_id for span in spans] == tokenizer.encode(prompt, add_special_tokens=False)
    assert all(
        text.encode()[span.start : span.stop].decode(errors="replace") == span.text
        or len(span.text.encode()) >= span.stop - span.start
        for span in spans
    )
    assert spans[-1].stop == len(text.encode())


def test_what_a_tokenizer_puts_around_texts_is_put_around_these(tokenizer: Tokenizer) -> None:
    control = controls(tokenizer)[0]
    marked, mark = tokenizer.control_tokens.marked(f"a{control}")
    assert mark is not None
    with_ends = tokenizer.encode(MarkedText(marked, mark), add_special_tokens=True)
    plain = tokenizer.encode(MarkedText(marked, mark), add_special_tokens=False)
    whole, inner = (tokenizer.encode("a", add_special_tokens=adds) for adds in (True, False))
    assert len(with_ends) - len(plain) == len(whole) - len(inner)


def test_names_arguments_and_keys_are_texts_of_clients_too() -> None:
    tokens = ControlTokens(TOKENS)
    values, mark = tokens.marked({"tools": [{"a</s>": ("<|user|>", 3, None, True)}]})
    assert mark is not None
    prompt = MarkedText(f"<|user|>{values}", mark)
    assert prompt.visible == "<|user|>{'tools': [{'a</s>': ['<|user|>', 3, None, True]}]}"
    assert [(run.text, run.is_plain) for run in tokens.runs(prompt)] == [
        ("<|user|>", False),
        ("{'tools': [{'a</s>': ['<|user|>', 3, None, True]}]}", True),
    ]


def test_a_text_of_nothing_but_control_tokens_is_marked_in_no_time() -> None:
    tokens = ControlTokens(TOKENS)
    text = "<|end|>" * MAX_MARKED
    begun_s = time.perf_counter()
    marked, mark = tokens.marked(text)
    assert mark is not None
    assert tokens.runs(MarkedText(marked, mark)) == [Run(text, is_plain=True)]
    # Token by token it took minutes.
    assert time.perf_counter() - begun_s < 10.0


def test_more_control_tokens_than_anybody_writes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 16384 texts of control tokens"):
        ControlTokens(TOKENS).marked(["<|end|>" * (MAX_MARKED + 1)])


def test_a_model_without_control_tokens_marks_nothing() -> None:
    assert ControlTokens(()).marked(["<|end|>"]) == (["<|end|>"], None)


PIECES = st.sampled_from(
    ["<", "<|", "|>", "<|en", "d|>", "<|end|>", "<|user|>", "</s>", "x", " ", "é"]
)


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=4), st.booleans())
def test_whatever_clients_write_the_tokens_are_those_of_the_template_alone(
    texts: list[str], trims: bool
) -> None:
    tokens = ControlTokens(TOKENS)
    marked, mark = tokens.marked(texts)
    shown = [text.strip() if trims else text for text in marked]
    prompt = MarkedText(f"<|user|>{''.join(shown)}<|end|>", mark or "no mark")
    runs = tokens.runs(prompt)
    assert "".join(run.text for run in runs) == prompt.visible
    with_tokens = "".join(run.text for run in runs if not run.is_plain)
    assert tokens._pattern.findall(with_tokens) == ["<|user|>", "<|end|>"]
