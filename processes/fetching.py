"""The folder of a model's tokenizer: with the checkpoint, which may have to be fetched from the
hub, or made of files that the router cannot read. Child processes do both.

GGUF files are refused here, with what to do instead: Tandem computes with weights as they were
trained, or quantizes them itself; transformers reads most GGUF files, and writes what Tandem
serves.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from processes.child import Child, ChildFailed
from processes.deployment import Deployment
from processes.logs import Console

# Of tokenizers that transformers can make a tokenizer.json of.
_OTHER_FILES = ("*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt")


async def fetch_tokenizer(
    deployment: Deployment, environ: Mapping[str, str], console: Console
) -> Path:
    """The folder of the tokenizer; the checkpoint is on this machine then. Raises ChildFailed."""
    folder = await _fetch(deployment, environ, console)
    others = [path.name for pattern in _OTHER_FILES for path in sorted(folder.glob(pattern))]
    if deployment.own_folder is None or not others or (folder / "tokenizer.json").is_file():
        return folder
    console.say(f"converting the tokenizer of {deployment.model_id} ({others[0]})")
    target = Path(tempfile.mkdtemp(prefix="tokenizer-", dir=deployment.own_folder))
    argv = deployment.conversion_argv(folder, target)
    child = await Child.start("tokenizer", argv, environ, console)
    try:
        code = await child.wait()
    finally:
        child.kill_group()
    if code:
        raise ChildFailed(child.death_notice())
    return target


async def _fetch(deployment: Deployment, environ: Mapping[str, str], console: Console) -> Path:
    folder = os.path.expanduser(deployment.model_id)
    refusal = gguf_refusal(Path(folder))
    if refusal is not None:
        raise ChildFailed(refusal)
    if os.path.isdir(folder):
        return Path(folder).resolve()
    console.say(f"fetching {deployment.model_id}")
    process = await asyncio.create_subprocess_exec(
        *deployment.download_argv(),
        env=dict(environ),
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
    )
    # Its progress bars go straight to our stderr; the folder comes on stdout, or the error.
    try:
        stdout, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    *_, last_line = stdout.decode().splitlines() or [""]
    if process.returncode != 0:
        accident = f"{deployment.model_id} could not be fetched: exit code {process.returncode}"
        raise ChildFailed(last_line.removeprefix("error: ") or accident)
    return Path(last_line)


_GGUF_COMMAND = """\
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
        f"    {_GGUF_COMMAND.format(**values)}"
    )
