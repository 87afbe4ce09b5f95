"""The commands and environments of one model's processes."""

import os
from pathlib import Path

import pytest

from processes.deployment import Deployment, Node, num_shards
from processes.settings import BadConfig


def deployment(**changes: object) -> Deployment:
    values: dict[str, object] = {
        "model_id": "a/b",
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
    return Deployment(**(values | changes))  # type: ignore[arg-type]


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
        pytest.param(True, None, "leaves nothing to shard over", id="no-gpu"),
    ],
)
def test_contradictions_are_refused(sharded: bool | None, num_shard: int | None, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        num_shards(sharded, num_shard, "cpu", {})


def test_each_rank_gets_its_number_and_its_share_of_the_cores() -> None:
    environ = deployment().shard_environ(1, {"PATH": "/bin", "RANK": "9"})
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["MASTER_PORT"]) == ("1", "2", "29500")
    assert int(environ["OMP_NUM_THREADS"]) >= 1
    assert environ["PATH"] == "/bin"
    assert environ["LOCAL_RANK"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environ


def test_on_a_cpu_the_gpus_are_hidden_from_the_ranks() -> None:
    assert deployment(device="cpu").shard_environ(0, {})["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_s_memory_is_taken_in_segments_that_grow_unless_the_operator_says() -> None:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    assert deployment().shard_environ(0, {})[name] == "expandable_segments:True"
    assert deployment().shard_environ(0, {name: "x"})[name] == "x"
    assert name not in deployment().shard_environ(0, {"PYTORCH_ALLOC_CONF": "x"})
    assert name not in deployment(device="cpu").shard_environ(0, {})


def test_ranks_that_meet_on_the_loopback_interface_talk_there_unless_the_operator_says() -> None:
    name = "GLOO_SOCKET_IFNAME"
    assert deployment().shard_environ(0, {})[name] == "lo"
    assert deployment().shard_environ(0, {name: "eth0"})[name] == "eth0"
    assert name not in deployment(master_addr="10.0.0.1").shard_environ(0, {})


def test_a_machine_has_its_own_ranks_at_its_own_address() -> None:
    second = deployment(num_shard=4, master_addr="fd00::1", node=Node(1, 2, "fd00::2", "eth1"))
    assert (list(second.ranks), second.serves_http) == ([2, 3], False)
    assert second.shard_place(3) == ("fd00::2", 29504)
    assert "--listen [fd00::2]:29501" in " ".join(second.shard_argv(None))
    environ = second.shard_environ(3, {})
    assert {name: environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    # NCCL would take eth10 for it as well.
    assert (environ["GLOO_SOCKET_IFNAME"], environ["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
    assert second.shard_environ(3, {"NCCL_SOCKET_IFNAME": "ib"})["NCCL_SOCKET_IFNAME"] == "ib"


def test_the_first_machine_has_its_ranks_beside_the_router() -> None:
    first = deployment(num_shard=4, node=Node(0, 2, "10.0.0.1", "eth1"))
    assert (list(first.ranks), first.serves_http) == ([0, 1], True)
    assert first.shard_place(1) == Path("/tmp/x/shard-1")
    assert "--listen" not in first.shard_argv(None)


def test_a_number_of_threads_that_the_operator_set_stays() -> None:
    assert deployment().shard_environ(0, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_the_router_is_pointed_at_rank_zero_and_the_tokenizer() -> None:
    argv = deployment().router_argv(Path("/models/x"))
    text = " ".join(argv)
    assert "--master-shard-uds-path /tmp/x/shard-0" in text
    assert "--tokenizer-name /models/x" in text
    assert text.endswith("--max-best-of 3")


def test_secrets_reach_the_router_alone_and_by_its_environment() -> None:
    guarded = deployment(secrets={"API_KEY": "hush"})
    assert "hush" not in str(guarded.shard_environ(0, {"PATH": "/"}))
    assert guarded.router_environ({"PATH": "/"}) == {"PATH": "/", "API_KEY": "hush"}
    assert "hush" not in str(guarded.router_argv(Path("/models/x")))
    assert "hush" not in repr(guarded)


def test_a_revision_reaches_the_download() -> None:
    assert "--revision=v2" in deployment(revision="v2").download_argv()


def test_no_child_outlives_a_launcher_that_was_killed() -> None:
    parent = f"--parent-pid {os.getpid()}"
    each = (
        deployment().shard_argv(None),
        deployment().download_argv(),
    )
    for argv in (*each, deployment().router_argv(Path("t"))):
        assert parent in " ".join(argv)
