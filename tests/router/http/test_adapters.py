"""The routes that load adapters and unload them: who may, from where, and what they answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from router.http.adapters import allowed_folder
from router.http.server.auth import KeyRing, plain_keys
from router.request.errors import InvalidRequest, NoAdapter
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.rig import adapter_folder

ADMIN = "an-admins-key-of-its-own"
LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"


@asynccontextmanager
async def administered(folder: Path, **edge: Any) -> AsyncIterator[House]:
    edge = {
        "lora_folders": (folder.resolve(),),
        "admin_keys": KeyRing(plain_keys([ADMIN])),
        **edge,
    }
    async with housing(FakeShard(max_loras=2), **edge) as house:
        yield house


async def post(house: House, path: str, key: str | None = ADMIN, **body: str) -> tuple[int, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with house.client as client:
        answer = await client.post(path, json=body, headers=headers)
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()["error"] if is_json else answer.text


async def test_an_adapter_is_loaded_and_unloaded_with_vllms_words(tmp_path: Path) -> None:
    path = adapter_folder(tmp_path, "sql")
    async with administered(tmp_path) as house:
        loaded = await post(house, LOAD, lora_name="sql", lora_path=path)
        assert loaded == (200, "Success: LoRA adapter 'sql' added successfully.")
        assert house.rig.adapters.listed["sql"].path == path
        status, error = await post(house, LOAD, lora_name="sql", lora_path=path)
        assert status == 400
        assert error["message"] == "the lora adapter 'sql' has already been loaded"
        unloaded = await post(house, UNLOAD, lora_name="sql")
        assert unloaded == (200, "Success: LoRA adapter 'sql' removed successfully.")
        status, error = await post(house, UNLOAD, lora_name="sql")
        assert status == 404
        assert error["message"] == "the lora adapter 'sql' cannot be found"


async def test_a_path_may_be_written_below_a_folder(tmp_path: Path) -> None:
    adapter_folder(tmp_path, "sql")
    async with administered(tmp_path) as house:
        assert (await post(house, LOAD, lora_name="a", lora_path="sql"))[0] == 200
        assert house.rig.adapters.listed["a"].path == str(tmp_path / "sql")


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_without_a_folder_nothing_is_loaded_whatever_the_key(
    path: str, tmp_path: Path
) -> None:
    async with administered(tmp_path, lora_folders=()) as house:
        status, error = await post(house, path, lora_name="sql", lora_path=str(tmp_path))
        assert status == 403
        assert "--lora-folders" in error["message"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
@pytest.mark.parametrize("key", [None, "", "sk-user", ADMIN[:-1]])
async def test_nobody_without_the_admin_key_may(path: str, key: str | None, tmp_path: Path) -> None:
    async with administered(tmp_path, api_keys=("sk-user",)) as house:
        status, error = await post(house, path, key, lora_name="sql", lora_path=str(tmp_path))
        assert (status, error["code"]) == (401, "invalid_api_key")
    async with administered(tmp_path) as house:
        status, error = await post(house, path, key, lora_name="sql", lora_path=str(tmp_path))
        assert status == 401
        assert "--admin-api-key" in error["message"]


async def test_the_admin_key_opens_nothing_else(tmp_path: Path) -> None:
    path = adapter_folder(tmp_path, "sql")
    async with administered(tmp_path, api_keys=("sk-user",)) as house:
        assert (await post(house, LOAD, lora_name="sql", lora_path=path))[0] == 200
        assert (await post(house, "/v1/completions", prompt="a"))[0] == 401


async def test_what_the_shard_refuses_is_a_400_with_its_reason(tmp_path: Path) -> None:
    path = adapter_folder(tmp_path, "sql")
    async with administered(tmp_path) as house:
        refusal = "use_dora is true, which is not served"
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        house.shard.faults.fails.append(("LoadAdapter", invalid, refusal))
        status, error = await post(house, LOAD, lora_name="sql", lora_path=path)
        assert (status, error["message"]) == (400, refusal)


@pytest.mark.parametrize("body", [{"lora_name": "a"}, {"lora_path": "a"}])
async def test_both_fields_are_needed(body: dict[str, str], tmp_path: Path) -> None:
    async with administered(tmp_path) as house:
        status, error = await post(house, LOAD, **body)
        assert status == 400
        assert error["param"] == ({"lora_name", "lora_path"} - body.keys()).pop()


@pytest.mark.parametrize(
    "path", ["..", "../inside/../secret", "/etc", "out", "out/deep", "circle/a", "a\0b"]
)
def test_no_way_leads_out_of_the_folders(path: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = Path(adapter_folder(tmp_path, "secret"))
    adapter_folder(secret, "deep")
    (inside / "out").symlink_to(secret)
    (inside / "circle").symlink_to(inside / "circle")
    with pytest.raises(InvalidRequest, match="`lora_path` must be in one of the folders"):
        allowed_folder([inside.resolve()], path)


def test_a_path_that_the_system_does_not_look_up_leads_to_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(NoAdapter, match=r'for "a.*: File name too long'):
        allowed_folder([tmp_path.resolve()], "a" * 5000)


def test_a_link_that_stays_inside_is_followed_and_the_next_folder_is_tried(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    first.mkdir()
    second.mkdir()
    adapter = Path(adapter_folder(second, "v2"))
    (second / "latest").symlink_to(adapter)
    folders = [first.resolve(), second.resolve()]
    assert allowed_folder(folders, "latest") == adapter
    assert allowed_folder(folders, str(second / "latest")) == adapter
    with pytest.raises(NoAdapter, match='No adapter found for "v3"'):
        allowed_folder(folders, "v3")
