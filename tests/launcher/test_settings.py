import os
import socket
from pathlib import Path

import pytest

from launcher.errors import BadSetting, PlaceTaken
from launcher.precheck import check_router
from launcher.settings import (
    ServeSettings,
    children_environ,
    free_port,
    num_shards,
    require_free_port,
    require_place,
)
from processes.readiness import address
from tests.router.http.server.certificates import make_certificate

QUIET = {"GRPC_VERBOSITY": "ERROR"}


def settings(**changes: object) -> ServeSettings:
    values: dict[str, object] = {
        "model_id": "a/b",
        "served_model_name": None,
        "revision": None,
        "num_shard": 2,
        "device": "auto",
        "hostname": "127.0.0.1",
        "port": 3000,
        "uds_path": "/tmp/x/shard",
        "master_addr": "127.0.0.1",
        "master_port": 29500,
        "graceful_timeout_s": 9.0,
        "startup_timeout_s": 60.0,
        "shard_flags": ("--dtype", "float32"),
        "router_flags": ("--max-best-of", "3"),
    }
    return ServeSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sharded", "num_shard", "environ", "expected"),
    [
        pytest.param(None, None, {}, 1, id="one-by-default"),
        pytest.param(False, None, {"CUDA_VISIBLE_DEVICES": "0,1"}, 1, id="not-sharded"),
        pytest.param(True, None, {"CUDA_VISIBLE_DEVICES": "0,1,3"}, 3, id="all-visible-gpus"),
        pytest.param(True, None, {"NVIDIA_VISIBLE_DEVICES": "0,1"}, 2, id="nvidia-variable"),
        pytest.param(None, None, {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, id="named-in-environment"),
        pytest.param(None, None, {"CUDA_VISIBLE_DEVICES": "-1"}, 1, id="hidden"),
        pytest.param(None, None, {"NVIDIA_VISIBLE_DEVICES": "void"}, 1, id="void"),
        pytest.param(None, 4, {}, 4, id="num-shard"),
        pytest.param(True, 2, {}, 2, id="both"),
    ],
)
def test_the_number_of_ranks_follows_tgis_rules(
    sharded: bool | None, num_shard: int | None, environ: dict[str, str], expected: int
) -> None:
    assert num_shards(sharded, num_shard, "auto", environ) == expected


@pytest.mark.parametrize(
    ("sharded", "num_shard", "said"),
    [
        pytest.param(False, 2, "contradicts --num-shard 2", id="not-sharded-but-two"),
        pytest.param(True, 1, "2 or more", id="sharded-over-one"),
        pytest.param(None, 0, "at least 1", id="zero"),
        pytest.param(True, None, "leaves nothing to shard over", id="no-gpu"),
    ],
)
def test_contradictions_are_refused(sharded: bool | None, num_shard: int | None, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        num_shards(sharded, num_shard, "cpu", {})


def test_each_rank_is_told_who_it_is_and_shares_the_cores() -> None:
    environ = settings().shard_environ(1, {"PATH": "/bin", "RANK": "9"})
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["MASTER_PORT"]) == ("1", "2", "29500")
    assert int(environ["OMP_NUM_THREADS"]) >= 1
    assert environ["PATH"] == "/bin"
    assert environ["LOCAL_RANK"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environ


def test_on_a_cpu_the_gpus_are_hidden_from_the_ranks() -> None:
    assert settings(device="cpu").shard_environ(0, {})["CUDA_VISIBLE_DEVICES"] == ""


def test_the_hubs_cache_is_handed_on_in_its_own_word() -> None:
    environ = children_environ({"HF_HUB_CACHE": "/old", "PATH": "/bin"}, Path("/new"))
    assert environ == {"HF_HUB_CACHE": "/new", "PATH": "/bin"} | QUIET
    assert children_environ({"HF_HUB_CACHE": "/old"}, None) == {"HF_HUB_CACHE": "/old"} | QUIET


def test_grpcs_notes_are_not_shown_unless_somebody_asks_for_them() -> None:
    assert children_environ({}, None) == QUIET
    assert children_environ({"GRPC_VERBOSITY": "DEBUG"}, None) == {"GRPC_VERBOSITY": "DEBUG"}


@pytest.mark.parametrize(
    ("hostname", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:3000"),
        ("0.0.0.0", "http://127.0.0.1:3000"),
        ("::", "http://[::1]:3000"),
        ("box.local", "http://box.local:3000"),
    ],
)
def test_the_address_to_try_is_one_that_can_be_called(hostname: str, url: str) -> None:
    assert address(hostname, 3000) == url
    assert address(hostname, 3000, has_tls=True) == url.replace("http:", "https:")


def test_a_number_of_threads_that_the_operator_set_stays() -> None:
    assert settings().shard_environ(0, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_the_router_is_pointed_at_rank_zero_and_the_tokenizer() -> None:
    argv = settings(served_model_name="pip").router_argv(Path("/models/x"))
    text = " ".join(argv)
    assert "--master-shard-uds-path /tmp/x/shard-0" in text
    assert "--tokenizer-name /models/x" in text
    assert "--served-model-name pip" in text
    assert text.endswith("--max-best-of 3")


def test_secrets_reach_the_router_alone_and_by_its_environment() -> None:
    given = settings(secrets={"API_KEY": "hush"})
    environ = children_environ({"API_KEY": "hush", "SSL_KEYFILE_PASSWORD": "x", "PATH": "/"}, None)
    assert environ == {"PATH": "/"} | QUIET
    assert "hush" not in str(given.shard_environ(0, environ))
    assert given.router_environ(environ) == {"PATH": "/", "API_KEY": "hush"} | QUIET
    assert "hush" not in str(given.router_argv(Path("/models/x")))
    assert "hush" not in repr(given)


def test_what_the_router_would_refuse_is_told_beforehand(tmp_path: Path) -> None:
    check_router(settings(), {})
    with pytest.raises(BadSetting, match="--max-best-of '0': must be"):
        check_router(settings(router_flags=("--max-best-of", "0")), {})
    with pytest.raises(BadSetting, match="API_KEY: each key must be") as caught:
        check_router(settings(secrets={"API_KEY": "hu sh"}), {})
    assert "hu sh" not in str(caught.value)


def test_tls_files_are_tried_beforehand(tmp_path: Path) -> None:
    mine, other = make_certificate(tmp_path / "mine"), make_certificate(tmp_path / "other")
    flags = ("--ssl-certfile", str(mine.cert), "--ssl-keyfile")
    check_router(settings(router_flags=(*flags, str(mine.key))), {})
    with pytest.raises(BadSetting, match="must be the key of the certificate"):
        check_router(settings(router_flags=(*flags, str(other.key))), {})


def test_a_revision_reaches_shards_and_download() -> None:
    with_revision = settings(revision="v2")
    assert "--revision v2" in " ".join(with_revision.shard_argv())
    assert "--revision v2" in " ".join(with_revision.download_argv())


def test_no_child_outlives_a_launcher_that_was_killed() -> None:
    parent = f"--parent-pid {os.getpid()}"
    each = (settings().shard_argv(), settings().download_argv(), settings().check_argv(Path("f")))
    for argv in (*each, settings().router_argv(Path("t"))):
        assert parent in " ".join(argv)


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PlaceTaken, match=f"127.0.0.1:{port}: .*in use"):
            require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", free_port())


def test_a_place_is_taken_as_long_as_the_system_takes_it(tmp_path: Path) -> None:
    longest = Path(f"{tmp_path}/{'s' * (107 - len(str(tmp_path)) - 1)}")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))
        require_place("--http-uds", longest)
        bound.listen()
        with pytest.raises(PlaceTaken, match="somebody listens at"):
            require_place("--http-uds", longest)
    with pytest.raises(BadSetting, match="at most 107 bytes"):
        require_place("--http-uds", longest, "s")


def test_a_place_by_a_short_way_is_as_long_as_that_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    require_place("--http-uds", Path("s"))


def test_a_place_that_cannot_be_looked_at_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(BadSetting, match=r"^--http-uds '.*': must be in a folder that exists"):
        require_place("--http-uds", tmp_path / "loop" / "s")
    with pytest.raises(BadSetting, match="at most 107 bytes"):
        require_place("--http-uds", tmp_path / ("s" * 300))
