"""Grammars without a lexer and patterns that look around, kept by a real server."""

import json
import re
import time
from typing import Any

import httpx
import pytest

from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

LISTS = 'root ::= "[" (root ("," root)*)? "]" | word\nword ::= "x" | "xy" | [0-9]{1,3}'
# What is left of such a list when the innermost ones are taken out again and again.
_INNERMOST = re.compile(r"\[(?:@(?:,@)*)?\]|xy?|[0-9]{1,3}")


def posted(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    """The answer, asked for again while the machine is too busy to judge the constraint."""
    for _ in range(20):
        answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            break
        time.sleep(1)
    return answer


def is_list(text: str) -> bool:
    before = ""
    while before != text:
        before, text = text, _INNERMOST.sub("@", text)
    return text == "@"


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_of_the_grammar(server: RunningServer, seed: int) -> None:
    body = {"prompt": "List: ", "max_tokens": 3 + 8 * seed, "temperature": 1.5, "seed": seed}
    answer = posted(server, "/v1/completions", {**body, "guided_grammar": LISTS}).json()
    assert is_list(answer["choices"][0]["text"])
    assert answer["choices"][0]["constraint_satisfied"] is True


def test_answers_match_patterns_that_look_around(server: RunningServer) -> None:
    pattern = r"(?=.*\d)(?!.*\ba)[a-z0-9 ]{5,20}"
    for seed in range(6):
        parameters = {
            "grammar": {"type": "regex", "value": pattern},
            "max_new_tokens": 12,
            "do_sample": True,
            "temperature": 1.5,
            "seed": seed,
        }
        answer = posted(server, "/generate", {"inputs": "Say", "parameters": parameters}).json()
        assert re.fullmatch(pattern, answer["generated_text"])


def test_a_grammar_is_judged_and_refused_with_its_place(server: RunningServer) -> None:
    body: dict[str, Any] = {
        "grammar": {"type": "gbnf", "value": LISTS},
        "texts": ["[xy,[7]]", "[x"],
    }
    judged = posted(server, "/constraints/check", body).json()
    assert [each["accepted"] for each in judged["results"]] == [True, False]
    body = {"grammar": {"type": "gbnf", "value": "root ::= <think>"}, "text": "a"}
    refused = posted(server, "/constraints/check", body)
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "position 9: tokens that stand for no text" in refused.text


def test_each_token_says_what_the_constraint_did_to_its_choice(server: RunningServer) -> None:
    pattern = "[0-9]=#[0-9]"
    body = {"prompt": "I have a", "temperature": 0, "max_tokens": 9, "guided_regex": pattern}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    chat |= {"response_format": {"type": "regex", "value": pattern}, "logprobs": True}

    lists = posted(server, "/v1/completions", {**body, "logprobs": 1}).json()["choices"][0]
    chosen = posted(server, "/v1/chat/completions", {**chat, "top_logprobs": 1}).json()["choices"][
        0
    ]
    bare = posted(server, "/v1/chat/completions", chat).json()["choices"][0]

    effects = {"free", "steered", "forced"}
    assert len(lists["logprobs"]["constraint"]) == len(lists["logprobs"]["tokens"])
    assert set(lists["logprobs"]["constraint"]) <= effects
    content = chosen["logprobs"]["content"]
    assert {each["constraint"] for each in content} <= effects
    for each in content:
        is_favourite = each["token"] == each["top_logprobs"][0]["token"]
        # A favourite that was taken was allowed.
        assert each["constraint"] != "steered" or not is_favourite
    assert {"steered", "forced"} <= {each["constraint"] for each in content}
    assert "constraint" not in bare["logprobs"]["content"][0]


def test_a_text_that_may_be_cut_is_cut_within_what_is_forced(server: RunningServer) -> None:
    grammar = {"type": "regex", "value": "a{50}", "on_budget": "cut"}
    parameters = {"grammar": grammar, "max_new_tokens": 5, "details": True}
    told = posted(server, "/generate", {"inputs": "Say", "parameters": parameters}).json()
    assert told["generated_text"] == "aaaaa"
    assert told["details"]["finish_reason"] == "length"
    assert told["details"]["constraint_satisfied"] is False


def test_a_way_that_a_greedy_terminal_never_ends_is_not_taken(server: RunningServer) -> None:
    told = posted(server, "/tokenize", {"inputs": "x"}).json()
    body = {
        "prompt": "Say",
        "max_tokens": 20,
        "logit_bias": {str(told[-1]["id"]): 100},
        "response_format": {"type": "lark", "value": 'start: "x" A "ab" | "c"\nA: /a+/'},
    }
    answer = posted(server, "/v1/completions", body).json()
    assert answer["choices"][0]["text"] == "c"
    assert answer["choices"][0]["constraint_satisfied"] is True


def test_a_grammar_that_greed_leaves_no_text_is_a_contradiction(server: RunningServer) -> None:
    grammar = {"type": "lark", "value": 'start: A "ab"\nA: /a+/'}
    refused = posted(server, "/generate", {"inputs": "Say", "parameters": {"grammar": grammar}})
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert refused.json()["constraint"]["reason"] == "contradiction"
    assert "rule `start` has no text" in refused.text


def test_answers_are_texts_that_are_not_a_terminal(server: RunningServer) -> None:
    grammar = 'start: A "!"\nA: ~/(?s:.*)[ea!](?s:.*)/'
    for seed in range(6):
        body = {"prompt": "Say", "max_tokens": 12, "temperature": 1.5, "seed": seed}
        answer = posted(server, "/v1/completions", {**body, "guided_grammar": grammar}).json()
        assert re.fullmatch(r"[^ea!]*!", answer["choices"][0]["text"])
        assert "\ufffd" not in answer["choices"][0]["text"]


def test_a_lenient_schemas_texts_are_judged_by_the_patterns_that_masks_kept(
    server: RunningServer,
) -> None:
    item = {"type": "string", "pattern": r"^\p{Ll}{3}\/\W$"}
    schema = {"type": "array", "items": item, "minItems": 1, "maxItems": 2, "uniqueItems": True}
    parameters = {
        "grammar": {"type": "json", "value": schema, "lenient": True},
        "max_new_tokens": 40,
        "do_sample": True,
        "details": True,
        "seed": 3,
    }
    answer = posted(server, "/generate", {"inputs": "List: ", "parameters": parameters}).json()
    texts = json.loads(answer["generated_text"])
    assert texts
    assert all(text[:3].islower() and text[3] == "/" and len(text) == 5 for text in texts)
    assert answer["details"]["constraint_satisfied"] is True
