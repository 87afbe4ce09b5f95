"""/chat_tokenize: the template's text and its tokens."""

from tests.fakes import FakeShard
from tests.router.http.harness import housing


async def test_a_chat_is_templated_and_tokenized() -> None:
    body = {"messages": [{"role": "user", "content": "é"}]}
    async with housing(FakeShard()) as house, house.client as client:
        answer = (await client.post("/chat_tokenize", json=body)).json()

    assert list(answer) == ["tokenize_response", "templated_text"]
    assert answer["templated_text"] == "user: é\n"
    assert answer["tokenize_response"][6:] == [
        {"id": 197, "text": "é", "start": 6, "stop": 8},
        {"id": 171, "text": "é", "start": 6, "stop": 8},
        {"id": 12, "text": "\n", "start": 8, "stop": 9},
    ]


async def test_a_text_of_many_tokens_is_answered_whole() -> None:
    text = "abcdefg" * 1000
    async with housing(FakeShard()) as house, house.client as client:
        plain = (await client.post("/tokenize", json={"inputs": text})).json()
        body = {"messages": [{"role": "user", "content": text}]}
        chat = (await client.post("/chat_tokenize", json=body)).json()

    assert "".join(token["text"] for token in plain) == text
    assert [(token["start"], token["stop"]) for token in plain] == [(i, i + 1) for i in range(7000)]
    assert [token["id"] for token in chat["tokenize_response"][6:-1]] == [t["id"] for t in plain]


async def test_what_a_chat_may_not_say_it_may_not_say_here() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for body, field in (
            ({}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ):
            answer = await client.post("/chat_tokenize", json=body)
            assert answer.status_code == 422
            assert answer.json().keys() == {"error", "error_type"}
            assert f"`{field}`" in answer.json()["error"]


async def test_without_a_template_it_is_a_template_error() -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    async with housing(FakeShard(), with_template=False) as house, house.client as client:
        answer = await client.post("/chat_tokenize", json=body)

    assert answer.status_code == 422
    assert answer.json()["error_type"] == "template_error"
    assert answer.json()["error"].startswith("Template error: ")
