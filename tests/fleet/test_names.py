"""Which names mean which models, and which are refused before a file is looked at."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import LoadFailed, UnknownModel
from fleet.names import AnyModel, ListedModels, Model
from processes.model_folders import HubError, NotOnHub


class FakeHub:
    """Has the models that it is given; records the names that it is asked for."""

    def __init__(self, *names: str, is_reachable: bool = True, cached: str = "") -> None:
        self.names = names
        self.cached = cached
        self.asked: list[str] = []
        self.is_reachable = is_reachable

    def has_here(self, name: str) -> bool:
        return name == self.cached

    def require(self, name: str) -> None:
        self.asked.append(name)
        if not self.is_reachable:
            raise HubError("the hub was not reached")
        if name not in self.names:
            raise NotOnHub("the hub has no such model")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("small", "org/large"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "models" / "empty").mkdir()
    outside = tmp_path / "secret"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (tmp_path / "models" / "link").symlink_to(outside)
    return tmp_path / "models"


async def test_a_folder_goes_by_its_path_below_the_root(root: Path) -> None:
    names = AnyModel(root, None)
    assert await names.find("small") == Model("small", str(root / "small"))
    assert await names.find("org/large") == Model("org/large", str(root / "org/large"))
    assert await names.find(str(root / "small")) == Model("small", str(root / "small"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("../secret", "begins with a dot", id="parent"),
        pytest.param("small/../../secret", "begins with a dot", id="parent-within"),
        pytest.param("/etc", "nothing is served", id="absolute"),
        pytest.param("link", "leads out of", id="link-out"),
        pytest.param("empty", "no config.json", id="no-config"),
        pytest.param("absent", "no such folder", id="absent"),
        pytest.param(".", "begins with a dot", id="dot"),
        pytest.param("-rf", "or a dash", id="flag"),
        pytest.param("a//b", "is empty", id="empty-part"),
        pytest.param("a\0b", "visible", id="nul"),
        pytest.param("small\n", "visible", id="line-break"),
        pytest.param("a\\b", "visible", id="backslash"),
        pytest.param("x" * 600, "512", id="long"),
    ],
)
async def test_what_is_no_name_is_refused_with_its_rule(root: Path, name: str, reason: str) -> None:
    with pytest.raises(UnknownModel, match=reason):
        await AnyModel(root, None).find(name)


@settings(deadline=None)
@given(name=st.text(alphabet="ab./\\-~ \0", max_size=12))
def test_no_name_leads_out_of_the_root(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.getbasetemp() / "names"
    for folder in (top, top / "root", top / "root" / "a", top / "root" / "a" / "b", top / "b"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
    try:
        found = asyncio.run(AnyModel(top / "root", None).find(name))
    except UnknownModel:
        return
    assert Path(found.source).is_relative_to(top / "root" / "a")
    assert found.source == str(top / "root" / name)


async def test_a_folder_where_the_server_was_started_is_not_taken_for_a_model_of_the_hub(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    hub = FakeHub("secret")
    with pytest.raises(UnknownModel, match="outside of the one of the models"):
        await AnyModel(root, hub).find("secret")
    assert hub.asked == []


async def test_what_is_no_folder_is_asked_of_the_hub(root: Path) -> None:
    hub = FakeHub("org/other")
    names = AnyModel(root, hub)
    assert await names.find("org/other") == Model("org/other", "org/other")
    assert await names.find("small") == Model("small", str(root / "small"))
    assert hub.asked == ["org/other"]


async def test_what_the_hub_has_not_is_unknown_unless_it_was_not_reached(root: Path) -> None:
    with pytest.raises(UnknownModel, match="no such model"):
        await AnyModel(root, FakeHub()).find("org/none")
    with pytest.raises(LoadFailed, match="was not reached") as refused:
        await AnyModel(root, FakeHub(is_reachable=False)).find("org/none")
    assert refused.value.retry_after_s == 30


def test_the_models_below_the_root_are_listed(root: Path) -> None:
    assert AnyModel(root, None).listed() == ["org/large", "small"]


async def test_listed_models_are_these_alone(root: Path) -> None:
    names = ListedModels([str(root / "small"), "org/name"])
    assert names.listed() == ["small", "org/name"]
    assert names.default() == await names.find("small") == await names.find(str(root / "small"))
    assert await names.find("org/name") == Model("org/name", "org/name")
    with pytest.raises(UnknownModel, match="served are"):
        await names.find("large")


async def test_a_listed_model_may_have_any_name() -> None:
    for name in ("a" * 300, "~no-such-user"):
        assert await ListedModels([name]).find(name) == Model(name, name)


async def test_a_name_that_is_too_long_for_a_file_is_unknown(root: Path) -> None:
    with pytest.raises(UnknownModel, match="too long"):
        await AnyModel(root, None).find("x" * 300)


async def test_a_hub_that_does_not_answer_is_waited_for_within_bounds(root: Path) -> None:
    answers = threading.Event()

    class SlowHub(FakeHub):
        def require(self, name: str) -> None:
            super().require(name)
            answers.wait(30)

    hub = SlowHub("some/where")
    names = AnyModel(root, hub, hub_timeout_s=0.05)
    with pytest.raises(LoadFailed, match=r"the hub did not answer for 'some/where' within 0\.05 s"):
        await names.find("some/where")
    answers.set()
    assert await AnyModel(root, hub).find("some/where") == Model("some/where", "some/where")


async def test_what_the_cache_has_waits_for_nobody(root: Path) -> None:
    answers = threading.Event()

    class SlowHub(FakeHub):
        def require(self, name: str) -> None:
            answers.wait(30)

    names = AnyModel(root, SlowHub(cached="org/known"))
    asking = [asyncio.create_task(names.find(f"org/{number}")) for number in range(9)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await names.find("org/known") == Model("org/known", "org/known")
    answers.set()
    await asyncio.gather(*asking)
