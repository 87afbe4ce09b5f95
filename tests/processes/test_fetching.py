from pathlib import Path

from processes.fetching import gguf_refusal


def test_a_gguf_file_is_refused_with_a_command_that_helps(tmp_path: Path) -> None:
    file = tmp_path / "tiny-Q4_K_M.gguf"
    file.touch()
    for path in (tmp_path, file):
        refusal = gguf_refusal(path)
        assert refusal is not None
        assert refusal.startswith(f"{file}: GGUF files are not served.")
        assert f"t = '{tmp_path}/tiny-Q4_K_M'; M.from_pretrained" in refusal


def test_a_folder_that_has_safetensors_as_well_is_served(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    (tmp_path / "model.safetensors").touch()
    assert gguf_refusal(tmp_path) is None
    assert gguf_refusal(tmp_path / "model.safetensors") is None
    assert gguf_refusal(Path("owner/name")) is None
