"""The folder of a model's tokenizer: with the checkpoint, which may have to be fetched from the
hub, or made of files that the router cannot read. Child processes do both.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from processes.child import Child, ChildFailed
from processes.deployment import Deployment
from processes.gguf import gguf_refusal
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
