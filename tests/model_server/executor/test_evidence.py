"""What one shard leaves to the next, that proves the weights."""

from pathlib import Path

import pytest
import torch

from model_server.executor.evidence import Evidence, KeptEvidence

CPU = torch.device("cpu")


def evidence() -> Evidence:
    exact = torch.randn(3, 8)
    # What is one tensor in the process that wrote it is two in the file.
    return Evidence(torch.tensor([1, 2, 3]), exact, exact, exact.bfloat16())


def test_the_next_shard_reads_what_this_one_wrote(tmp_path: Path) -> None:
    kept = KeptEvidence(tmp_path / "evidence.safetensors", "these weights")
    assert kept.read(CPU) is None
    written = evidence()
    kept.write(written)
    read = KeptEvidence(tmp_path / "evidence.safetensors", "these weights").read(CPU)
    assert read is not None
    assert torch.equal(read.token_ids, written.token_ids)
    assert torch.equal(read.exact, written.exact)
    assert torch.equal(read.native, written.native)
    assert [path.name for path in tmp_path.iterdir()] == ["evidence.safetensors"]


def test_evidence_of_other_weights_is_none(tmp_path: Path) -> None:
    KeptEvidence(tmp_path / "evidence.safetensors", "these weights").write(evidence())
    assert KeptEvidence(tmp_path / "evidence.safetensors", "those").read(CPU) is None


def test_a_file_that_is_cut_off_is_none_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptEvidence(tmp_path / "evidence.safetensors", "these weights")
    kept.write(evidence())
    path = tmp_path / "evidence.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    assert kept.read(CPU) is None
    assert "the evidence of an earlier shard cannot be read" in caplog.text


def test_without_room_for_it_nothing_is_left_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptEvidence(tmp_path / "gone" / "evidence.safetensors", "these weights")
    kept.write(evidence())
    assert "no evidence is left to the next shard" in caplog.text
    assert kept.read(CPU) is None
