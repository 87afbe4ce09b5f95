"""The folder of a model's tokenizer: with the checkpoint, which may have to be fetched from the
hub, or made of files that the router cannot read. Child processes do both.

Of a GGUF file a folder is made that has all but the weights, which stay in the file: it is the
model's folder and the tokenizer's.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from processes.child import Child, ChildFailed
from processes.deployment import Deployment
from processes.gguf_cache import DESCRIPTION, GgufCache, files_of_gguf
from processes.logs import Console
from processes.model_folders import NotOnHub, local_folder

# Of tokenizers that transformers can make a tokenizer.json of.
_OTHER_FILES = ("*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt")


async def fetch_tokenizer(
    deployment: Deployment, environ: Mapping[str, str], console: Console
) -> Path:
    """The folder of the tokenizer; the checkpoint is on this machine then. Raises ChildFailed."""
    folder = await _fetch(deployment, environ, console)
    if deployment.own_folder is None:
        return folder
    gguf = _gguf_file(folder)
    if gguf is not None:
        target = Path(tempfile.mkdtemp(prefix="gguf-", dir=deployment.own_folder))
        await _make_of_gguf(gguf, target, deployment.gguf_argv(gguf, target), environ, console)
        return target
    others = [path.name for pattern in _OTHER_FILES for path in sorted(folder.glob(pattern))]
    if not others or (folder / "tokenizer.json").is_file():
        return folder
    console.say(f"converting the tokenizer of {deployment.model_id} ({others[0]})")
    target = Path(tempfile.mkdtemp(prefix="tokenizer-", dir=deployment.own_folder))
    await _make("tokenizer", deployment.conversion_argv(folder, target), environ, console)
    return target


async def _make_of_gguf(
    file: Path, target: Path, argv: Sequence[str], environ: Mapping[str, str], console: Console
) -> None:
    """By the command `argv`, or as it was kept by an earlier start. Raises ChildFailed."""
    kept = GgufCache()
    try:
        key = kept.key(file)
    except FileNotFoundError as error:
        raise ChildFailed(f"{file} lacks its part {error.filename}") from error
    if kept.copy_to(target, key):
        console.say(f"{file.name} is unchanged: what was read at an earlier start is taken")
        console.pass_on("gguf", (target / DESCRIPTION).read_text())
        return
    console.say(f"reading {file.name}")
    await _make("gguf", argv, environ, console)
    try:
        kept.keep(target, key)
    except OSError as error:
        console.say(f"what was read is not kept for the next start: {error}")


async def _make(
    name: str, argv: Sequence[str], environ: Mapping[str, str], console: Console
) -> None:
    """Run a command that makes files. Raises ChildFailed."""
    child = await Child.start(name, argv, environ, console)
    try:
        code = await child.wait()
    finally:
        child.kill_group()
    if code:
        raise ChildFailed(child.death_notice())


async def _fetch(deployment: Deployment, environ: Mapping[str, str], console: Console) -> Path:
    path = Path(os.path.expanduser(deployment.model_id))
    if not path.is_dir() and _gguf_file(path) is not None:
        return path.absolute()
    try:
        folder = local_folder(deployment.model_id)
    except NotOnHub as error:
        raise ChildFailed(str(error)) from error
    if folder is not None:
        return folder
    console.say(f"fetching {deployment.model_id}")
    argv = deployment.download_argv()
    # The folder, or the error, is the last line of its stdout.
    child = await Child.start("hub", argv, environ, console, draws_bars=console.draws_bars)
    try:
        code = await child.wait()
    finally:
        child.kill_group()
    if code:
        raise ChildFailed(child.error or child.death_notice())
    return Path(child.last_lines[-1])


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that is named, or the only one of a folder that has no other weights.

    Raises ChildFailed for one of several.
    """
    if not path.is_dir():
        return path.absolute() if path.suffix == ".gguf" and path.is_file() else None
    files = [
        file
        for file in sorted(path.glob("*.gguf"))
        # What sees has a file of its own.
        if files_of_gguf(file)[0] == file and not file.name.startswith("mmproj")
    ]
    if not files or any(path.glob("*.safetensors")):
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ChildFailed(f"{path}: has several GGUF files; name one of them: {names}")
    return files[0].absolute()
