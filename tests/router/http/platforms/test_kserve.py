"""KServe's protocol: health, metadata, and tensors of text in TGI's form and in KServe's own."""

from typing import Any

import pytest

from tests.fakes import FakeShard, letters, saying
from tests.router.http.harness import House, housing

INFER = "/v2/models/any/versions/1/infer"
GREEDY = {"max_new_tokens": 4, "do_sample": False}


def tensor(data: Any, shape: list[int], **others: Any) -> dict[str, Any]:
    return {"name": "in", "shape": shape, "datatype": "BYTES", "data": data, **others}


def as_bytes(text: str) -> dict[str, Any]:
    """A text as TGI's clients send it."""
    return tensor(list(text.encode()), [1, len(text.encode())])


async def infer(house: House, path: str = INFER, **body: Any) -> Any:
    async with house.client as client:
        return await client.post(path, json=body)


async def test_live_and_ready_are_two_things() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"live": True, "ready": True}

        await house.rig.batcher.drain(1.0)
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        for path in ("/v2/health/ready", "/v2/models/any/ready", "/v2/models/any/versions/1/ready"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}


async def test_the_server_describes_itself_as_tgi_does() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get("/v2")

    assert answer.json() == {
        "name": "text-generation-inference",
        "version": "0.0.1",
        "extensions": ["health", "models", "metrics"],
    }


@pytest.mark.parametrize("name", ["any", "fake/model"])
async def test_a_model_echoes_its_name_and_version(name: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        plain = (await client.get(f"/v2/models/{name}")).json()
        versioned = (await client.get(f"/v2/models/{name}/versions/7")).json()
        ready = (await client.get(f"/v2/models/{name}/versions/7/ready")).json()

    assert (plain["name"], plain["versions"], "version" in plain) == (name, ["1"], False)
    assert (versioned["name"], versioned["version"]) == (name, "7")
    assert versioned["extensions"] == ["infer", "ready"]
    assert ready == {"name": name, "live": True, "ready": True}


@pytest.mark.parametrize("path", ["/v2/models/", "/v2/models/a/b", "/v2/models/a/versions/1/x"])
async def test_what_is_no_model_is_a_404(path: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(path)

    assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found")


async def test_bytes_in_are_bytes_out() -> None:
    async with housing(FakeShard(script=saying("é!", 3))) as house:
        answer = await infer(
            house, id="7", inputs=[as_bytes("hé")], outputs=[{"name": "out"}], parameters=GREEDY
        )

    data = list("é!".encode())
    chunk = {"name": "out", "shape": [1, 3], "datatype": "BYTES", "data": data}
    assert answer.json() == {
        "model_name": "any",
        "model_version": "1",
        "id": "7",
        "outputs": [chunk],
    }


async def test_strings_in_are_strings_out_in_the_shape_that_they_came_in() -> None:
    async with housing(FakeShard(script=saying("ok", 5))) as house:
        tensors = [tensor([["hello"], ["world"]], [2, 1])]
        answer = await infer(house, "/v2/models/any/infer", inputs=tensors, parameters=GREEDY)

    chunk = {"name": "in", "shape": [2, 1], "datatype": "BYTES", "data": ["ok", "ok"]}
    assert answer.json() == {"model_name": "any", "outputs": [chunk]}


async def test_outputs_are_in_the_order_of_the_inputs() -> None:
    async with housing(FakeShard(script=letters)) as house:
        names = [{"name": "x"}, {"name": "y"}]
        tensors = [tensor(["ab", "c"], [2]), as_bytes("d")]
        both = (await infer(house, inputs=tensors, outputs=names, parameters=GREEDY)).json()
        alone = [
            (await infer(house, inputs=[tensor([text], [1])], parameters=GREEDY)).json()
            for text in ("ab", "c", "d")
        ]

    texts = [answer["outputs"][0]["data"][0] for answer in alone]
    first, second = both["outputs"]
    assert (first["name"], first["data"]) == ("x", texts[:2])
    assert (second["name"], bytes(second["data"]).decode()) == ("y", texts[2])


async def test_without_parameters_prompts_are_sampled() -> None:
    async with housing(FakeShard(script=saying("ok", 5))) as house:
        await infer(house, inputs=[as_bytes("hello")])

        calls = [call for method, call in house.shard.calls if method == "Prefill"]
        assert calls[0].batch.requests[0].sampling.do_sample


@pytest.mark.parametrize(
    ("body", "error_type", "words"),
    [
        ({"inputs": []}, "validation", "`inputs` must have at least 1 item"),
        ({"inputs": [{"name": "a"}]}, "validation", "`inputs[0].shape` is required"),
        (
            {"inputs": [as_bytes("a")], "outputs": [{"name": "x"}, {"name": "y"}]},
            "length mismatch",
            "Inputs and outputs length mismatch",
        ),
        ({"inputs": [tensor([104, 255], [1, 2])]}, "utf8", "at byte 1"),
        ({"inputs": [tensor(["a"], [2])]}, "validation", "`inputs[0].shape` must say how many"),
        ({"inputs": [tensor(["a"], [-1, -1])]}, "validation", "Given: -1x-1, and 1 strings"),
        ({"inputs": [tensor(["a"], [2**63 - 1] * 3000)]}, "validation", "and 1 strings"),
        ({"inputs": [tensor(["a"], [1] * 9)]}, "validation", "and 1 strings"),
        ({"inputs": [tensor([256], [1])]}, "validation", "`inputs[0].data` must be strings"),
        ({"inputs": [tensor([True], [1])]}, "validation", "`inputs[0].data` must be strings"),
        ({"inputs": [tensor([], [0])]}, "validation", "not empty"),
        ({"inputs": [tensor(["a", 1], [2])]}, "validation", "`inputs[0].data` must be strings"),
        ({"inputs": [tensor(["a"], [2])]}, "validation", "Given: 2, and 1 strings"),
        ({"inputs": [tensor(["a"], [1], datatype="FP32")]}, "validation", 'Given: "FP32"'),
        ({"inputs": [tensor(["a", ""], [2])]}, "validation", "in `inputs[0]`"),
        ({"inputs": [tensor(["a"] * 9, [9])]}, "validation", "at most 8 prompts. Given: 9"),
    ],
)
async def test_tensors_that_cannot_be_served_are_a_422(
    body: Any, error_type: str, words: str
) -> None:
    async with housing(FakeShard()) as house:
        answer = await infer(house, **body)

        assert (answer.status_code, answer.json()["error_type"]) == (422, error_type)
        assert words in answer.json()["error"]
        assert not any(method == "Prefill" for method, _ in house.shard.calls)
