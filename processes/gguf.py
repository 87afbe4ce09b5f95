"""GGUF, llama.cpp's format, is not served: what to do with such a model instead.

Tandem computes with weights as they were trained, or quantizes them itself. transformers reads most
GGUF files, and writes what Tandem serves.
"""

from pathlib import Path

_COMMAND = """\
python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; \
from transformers import GgufConfig as Q; \
f = dict(pretrained_model_name_or_path={folder!r}, gguf_file={name!r}); t = {target!r}; \
M.from_pretrained(**f, quantization_config=Q(dequantize=True)).save_pretrained(t); \
T.from_pretrained(**f).save_pretrained(t)\""""


def gguf_refusal(path: Path) -> str | None:
    """Why a GGUF file, or a folder of nothing else, is not served; None: it is neither."""
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if not files or any(path.glob("*.safetensors")):
            return None
        path = files[0]
    elif path.suffix != ".gguf":
        return None
    target = path.with_suffix("")
    values = {"folder": str(path.parent), "name": path.name, "target": str(target)}
    return (
        f"{path}: GGUF files are not served. Serve the model's safetensors, as its makers offer "
        f"them, or make some of this file and serve {target} (needs pip install gguf):\n"
        f"    {_COMMAND.format(**values)}"
    )
