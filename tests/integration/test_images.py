"""Images on a running server: transformers' answers, on every API; and what is sent to hurt it."""

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from processes.image_processor import without_videos
from tests.command_line import run_launcher
from tests.integration.server import RunningServer, launched, metric
from tests.router.images.hostile import FILES
from tests.seeing_checkpoint import save

pytestmark = pytest.mark.slow

NUM_NEW = 8
CHAT = "/v1/chat/completions"
MAX_PIXELS = 1_000_000
_hf: Any = transformers


# What each makes of images is held on lower floors: model_server/engine/test_images.py and
# router/images/test_pool.py.
@pytest.fixture(
    scope="module",
    params=[
        *("llava", "qwen2_5_vl"),
        pytest.param("idefics3", marks=pytest.mark.nightly),
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    flags = ("--dtype", "float32", "--max-image-pixels", str(MAX_PIXELS), "--max-images", "3")
    with launched(*flags, model=folder) as running:
        yield running


def png(colour: tuple[int, int, int], size: tuple[int, int] = (40, 60)) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


RED = png((255, 0, 0))
GREEN = png((0, 255, 0), (70, 33))


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def turns_of_chat() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [text("what is "), image(RED), text("?")]},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": [image(GREEN), text("and this?")]},
    ]


def ask(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    answer = server.http.post(path, json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def processor_of(folder: Path) -> Any:
    with without_videos():
        return _hf.AutoProcessor.from_pretrained(folder)


def expected_ids(
    folder: Path, turns: list[dict[str, Any]], files: list[bytes], num_new: int = NUM_NEW
) -> list[int]:
    """What transformers' own processor and class make of a chat, greedily."""
    processor = processor_of(folder)
    model = _hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    shown = [
        {
            "role": turn["role"],
            "content": [text(turn["content"])]
            if isinstance(turn["content"], str)
            else [
                part if part["type"] == "text" else {"type": "image"} for part in turn["content"]
            ],
        }
        for turn in turns
    ]
    prompt = processor.apply_chat_template(shown, add_generation_prompt=True, tokenize=False)
    opened = [Image.open(BytesIO(data)).convert("RGB") for data in files]
    inputs = processor(text=prompt, images=opened, add_special_tokens=False, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        made = model.generate(**inputs, max_new_tokens=num_new, do_sample=False)
    return [int(each) for each in made[0, inputs["input_ids"].shape[1] :]]


def test_a_chat_with_images_is_answered_as_by_transformers(
    server: RunningServer, folder: Path
) -> None:
    turns = turns_of_chat()
    answered = ask(server, CHAT, messages=turns, max_tokens=NUM_NEW, return_token_ids=True)

    assert answered["choices"][0]["token_ids"] == expected_ids(folder, turns, [RED, GREEN])


def test_the_same_images_are_not_encoded_again(server: RunningServer) -> None:
    ask(server, CHAT, messages=turns_of_chat(), max_tokens=2)
    before = metric(server, 'tandem_image_rows_total{source="encoder"}')
    again = ask(server, CHAT, messages=turns_of_chat(), max_tokens=2)

    assert metric(server, 'tandem_image_rows_total{source="encoder"}') == before
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("num_shard", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_images_come_again_after_a_preemption_and_a_killed_shard(
    tmp_path: Path, num_shard: int
) -> None:
    folder = save("llava", tmp_path)
    num_new = 100
    shards = ("--num-shard", str(num_shard), "--max-restarts", "1")
    chats = [
        ([{"role": "user", "content": [text(f"{number} is "), *map(image, files)]}], files)
        for number, files in enumerate(([RED], [GREEN], [RED, GREEN], [GREEN, RED]))
    ]
    expected = [expected_ids(folder, turns, files, num_new) for turns, files in chats]

    def answer(running: RunningServer, turns: list[dict[str, Any]]) -> list[int]:
        answered = ask(running, CHAT, messages=turns, max_tokens=num_new, return_token_ids=True)
        ids: list[int] = answered["choices"][0]["token_ids"]
        return ids

    with (
        # The pool has room for less than two of them.
        launched("--dtype", "float32", "--kv-blocks", "18", *shards, model=folder) as running,
        ThreadPoolExecutor(len(chats)) as pool,
    ):
        turns = [turns for turns, _ in chats]
        assert list(pool.map(partial(answer, running), turns)) == expected
        assert metric(running, "tandem_preemptions_total") > 0
        before = metric(running, "tandem_output_tokens_total")
        answers = [pool.submit(answer, running, each) for each in turns]
        while metric(running, "tandem_output_tokens_total") == before:
            time.sleep(0.005)
        os.kill(running.pid_of("model_server"), signal.SIGKILL)
        assert [each.result() for each in answers] == expected
        assert metric(running, "tandem_shard_failures_total") == 1


def test_another_image_has_another_answer(server: RunningServer) -> None:
    answers = [
        ask(server, CHAT, messages=[{"role": "user", "content": [image(data)]}], max_tokens=NUM_NEW)
        for data in (RED, GREEN)
    ]
    first, second = (answer["choices"][0]["message"]["content"] for answer in answers)
    assert first != second


def test_every_api_reads_the_same_prompt(server: RunningServer) -> None:
    data = base64.b64encode(RED).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    chat = {"role": "user", "content": [text("see "), image(RED)]}
    given = {"type": "input_image", "image_url": url_of(RED)}
    item = {"role": "user", "content": [{"type": "input_text", "text": "see "}, given]}
    block = {"role": "user", "content": [text("see "), {"type": "image", "source": source}]}
    by_chat = ask(server, CHAT, messages=[chat], max_tokens=4)
    by_item = ask(server, "/v1/responses", input=[item], max_output_tokens=4)
    by_block = ask(server, "/v1/messages", messages=[block], max_tokens=4)
    counted = server.http.post("/v1/messages/count_tokens", json={"messages": [block]}).json()
    count = server.http.post("/v1/responses/input_tokens", json={"input": [item]}).json()

    num_tokens = by_chat["usage"]["prompt_tokens"]
    assert by_item["usage"]["input_tokens"] == count["input_tokens"] == num_tokens
    usage = by_block["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_tokens
    assert counted["input_tokens"] == num_tokens
    said = by_chat["choices"][0]["message"]["content"]
    assert by_item["output"][0]["content"][0]["text"] == said
    assert by_block["content"][0]["text"] == said


def test_tgis_prompts_have_images_in_their_text(server: RunningServer, folder: Path) -> None:
    inputs = f"see ![]({url_of(RED)}) it"
    parameters = {"max_new_tokens": 4, "details": True}
    body = {"inputs": inputs, "parameters": parameters}
    whole = server.http.post("/generate", json=body).json()
    lines = server.http.post("/generate_stream", json=body).text.split("\n\n")
    compat = server.http.post(
        "/", json=body | {"parameters": {**parameters, "return_full_text": False}}
    )
    cut = server.http.post("/generate", json=body | {"parameters": {"truncate": 3}})
    wrong = server.http.post("/generate", json={"inputs": "see ![](cat.png)"})

    last = json.loads(lines[-2].removeprefix("data:"))
    processor = processor_of(folder)
    prompt = f"see {processor.image_token} it"
    span = processor(text=prompt, images=[Image.open(BytesIO(RED))], add_special_tokens=False)
    assert last["details"]["input_length"] == len(span["input_ids"][0])
    assert last["generated_text"] == whole["generated_text"] == compat.json()[0]["generated_text"]
    assert (cut.status_code, wrong.status_code) == (422, 422)
    assert "an image is not cut" in cut.json()["error"]


def test_a_marker_without_an_image_is_a_users_text_in_chats_and_refused_in_raw_prompts(
    server: RunningServer, folder: Path
) -> None:
    spelt = f"see {processor_of(folder).image_token}"
    ask(server, CHAT, messages=[{"role": "user", "content": spelt}], max_tokens=1)
    raw = server.http.post("/generate", json={"inputs": spelt})
    completion = server.http.post("/v1/completions", json={"model": "tgi", "prompt": spelt})

    assert (raw.status_code, completion.status_code) == (422, 400)
    assert "`inputs` must have a marker" in raw.json()["error"]
    assert completion.json()["error"]["param"] == "prompt"


def test_what_is_odd_or_made_to_hurt_is_answered_or_refused(server: RunningServer) -> None:
    for name, (data, expected) in FILES.items():
        body = {"messages": [{"role": "user", "content": [image(data)]}], "max_tokens": 1}
        answer = server.http.post(CHAT, json=body)
        # A processor may refuse a shape, such as one of a single row.
        codes = (400,) if isinstance(expected, str) else (200, 400)
        assert answer.status_code in codes, (name, answer.text[:300])
        if answer.status_code == 400:
            field = answer.json()["error"]["param"]
            assert field == "messages[0].content[0].image_url.url", (name, answer.text[:300])
    assert ask(server, CHAT, messages=turns_of_chat(), max_tokens=1)["choices"]


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "file:///etc/passwd", "data:,"])
def test_a_url_that_may_not_be_asked_is_refused(server: RunningServer, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = server.http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].image_url.url"


def test_a_request_has_a_number_of_images(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": [image(RED)] * 4}]}
    answer = server.http.post(CHAT, json=body)

    assert answer.status_code == 400
    assert "it may have 3 (--max-images)" in answer.json()["error"]["message"]


def test_images_go_with_constraints_choices_and_logprobs(server: RunningServer) -> None:
    answered = ask(
        server,
        CHAT,
        messages=turns_of_chat(),
        n=2,
        logprobs=True,
        top_logprobs=2,
        guided_choice=["red", "green"],
        max_tokens=8,
    )

    assert {one["message"]["content"] for one in answered["choices"]} <= {"red", "green"}
    assert all(one["logprobs"]["content"] for one in answered["choices"])


def test_the_server_says_that_it_sees(server: RunningServer) -> None:
    info = server.http.get("/info").json()
    (card,) = server.http.get("/v1/models").json()["data"]

    assert (info["sees"], info["blind_reason"], card["sees"]) == (True, None, True)


def test_the_client_shows_an_image(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(RED)
    said = run_launcher("client", server.url, stdin=f'/image {path}\nsee choice=["red"]\n')

    assert said.returncode == 0
    assert "[1 image for the next message]" in said.stderr
    assert said.stdout == "red\n"
