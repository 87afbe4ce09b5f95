"""`launcher client` as it is typed: through pipes and on a terminal."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from client.cli.client import HISTORY_NAME, Chat
from client.cli.terminal import Screen
from client.lmtp.model import LmtpModel
from tests.client.lmtp.peer import Peer, performing

ARGV = (sys.executable, "-m", "launcher", "client")


async def echo(peer: Peer) -> None:
    """Answers a prompt with its letters as tokens; "for ever" with tokens until it is cancelled."""
    await peer.greet()
    while True:
        kind, body = await peer.read()
        if kind == "GENERATE" and body["text"] == "for ever":
            await peer.say("SYS", {"stream_id": body["stream_id"], "state": "queued"})
            await peer.token(body["stream_id"], 0)
        elif kind == "GENERATE":
            await answer(peer, body)


async def answer(peer: Peer, body: dict[str, Any]) -> None:
    stream_id, text = body["stream_id"], body["text"]
    if "bad" in text:
        await peer.fail(stream_id, "validation")
        return
    for letter in text[:-1]:
        await peer.token(stream_id, ord(letter) - ord("a"), text=letter)
    await peer.done(stream_id, text)


async def piped(*args: str, stdin: str, **environ: str) -> tuple[int | None, str, str]:
    """Exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *ARGV, *args, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **environ}
    )
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 30)
    return process.returncode, out.decode(), err.decode()


async def test_each_line_of_a_pipe_is_answered_on_stdout() -> None:
    async with performing(echo) as scene:
        code, out, err = await piped(scene.url, stdin="abc\n\ndef temperature=0.5\nlast")
        sent = [body for peer in scene.peers for kind, body in peer.received if kind == "GENERATE"]
    assert (code, out, err) == (0, "abc\ndef\nlast\n", "")
    assert [body["temperature"] for body in sent] == [0.0, 0.5, 0.0]


async def test_the_model_and_the_place_may_come_from_outside() -> None:
    async with performing(echo) as scene:
        code, out, _ = await piped(stdin="abc\n", TANDEM_URL=scene.url, TANDEM_API_KEY="sesame")
        assert (code, out) == (0, "abc\n")
        code, out, _ = await piped(scene.url, "scripted", "--api-key", "other", stdin="abc\n")
        assert (code, out) == (0, "abc\n")
        asked = [peer for peer in scene.peers if len(peer.received) > 1]
        keys = [peer.socket.request.headers["Authorization"] for peer in asked]  # type: ignore[union-attr]
        models = [peer.received[1][1].get("model") for peer in asked]
    assert keys == ["Bearer sesame", "Bearer other"]
    assert models == [None, "scripted"]


async def talked(url: str, *lines: str) -> tuple[list[bool], str, str]:
    """What is answered to these lines, without a process: which went well, stdout, stderr."""
    out, err = StringIO(), StringIO()
    chat = Chat(lambda: LmtpModel(url), Screen(out, err), is_interactive=False)
    done = [await chat.answer(line) for line in lines]
    return done, out.getvalue(), err.getvalue()


async def test_parameters_alone_hold_for_what_follows() -> None:
    lines = ("max_tokens=7 seed=1", "abc", "abc seed=2", "seed=", "abc")
    async with performing(echo) as scene:
        done, _, err = await talked(scene.url, *lines)
        sent = [body for peer in scene.peers for kind, body in peer.received if kind == "GENERATE"]
    assert all(done)
    assert [body.get("seed") for body in sent] == [1, 2, None]
    assert [body["max_tokens"] for body in sent] == [7, 7, 7]
    assert err == "[from now on: max_tokens=7 seed=1]\n[from now on: max_tokens=7]\n"


async def test_errors_go_to_stderr_and_the_rest_is_answered() -> None:
    lines = ("bad", "abc temperature=hot", "/nothing", "abc")
    async with performing(echo) as scene:
        done, out, err = await talked(scene.url, *lines)
    assert (done, out) == ([False, False, False, True], "abc\n")
    assert err.splitlines() == [
        "error: it went wrong",
        "error: temperature must be a number. Given: hot",
        "error: /nothing: no such command; there are /info, /help and /quit",
    ]


async def test_a_wrong_line_shows_in_the_exit_code() -> None:
    async with performing(echo) as scene:
        code, out, err = await piped(scene.url, stdin="bad\nabc\n")
    assert (code, out, err) == (1, "abc\n", "error: it went wrong\n")


async def test_info_help_and_quit_are_no_prompts() -> None:
    async with performing(echo) as scene:
        code, out, _ = await piped(scene.url, stdin="/info\n/help\n/quit\nabc\n")
        assert [kind for peer in scene.peers for kind, _ in peer.received] == ["HELLO", "HELLO"]
    assert code == 0
    assert "server: scripted 1.0\nmodels: scripted\n" in out
    assert "max_tokens=50 temperature=0.7" in out


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1"])
def test_no_server_is_one_clear_line(url: str) -> None:
    argv = [*ARGV, url]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, input="a")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("error: ")
    assert len(said.stderr.splitlines()) == 1


async def test_an_interrupt_cancels_the_stream_and_ends_a_client_of_pipes() -> None:
    async with performing(echo) as scene:
        process = await asyncio.create_subprocess_exec(
            *ARGV, scene.url, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"for ever\nabc\n")
        assert await asyncio.wait_for(process.stdout.readexactly(1), 30) == b"a"
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 30)
        await until_gone(scene.peers[1])
    assert (process.returncode, out) == (130, b"\n")
    assert err == b"[queued]\n"


async def test_an_interrupt_while_nothing_runs_ends_a_client_of_pipes() -> None:
    async with performing(echo) as scene:
        process = await asyncio.create_subprocess_exec(
            *ARGV, scene.url, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"abc\n")
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"abc\n"
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 130


async def until_gone(peer: Peer) -> None:
    """The connection is closed, which frees the request at the server."""
    await asyncio.wait_for(peer.socket.wait_closed(), 30)


@dataclass
class Terminal:
    """A client on a terminal; `said` is all that was written to it."""

    process: Process
    fd: int
    said: str = ""

    async def read_until(self, text: str) -> str:
        """What was written up to and with `text`, without colours; taken away from `said`."""
        async with asyncio.timeout(30):
            while text not in _plain(self.said):
                await asyncio.sleep(0.02)
        head, _, _ = _plain(self.said).partition(text)
        self.said = _plain(self.said)[len(head) + len(text) :]
        return head + text

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]", "", text)


@asynccontextmanager
async def on_a_terminal(*args: str, **environ: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *ARGV,
        *args,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environ},
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)

    def read() -> None:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:
            chunk = b""
        terminal.said += chunk.decode(errors="replace")
        if not chunk:
            loop.remove_reader(ours)

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        yield terminal
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


def _take_terminal() -> None:
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))


async def test_on_a_terminal_ctrl_c_cancels_what_runs_and_ctrl_d_leaves(tmp_path: Path) -> None:
    async with (
        performing(echo) as scene,
        on_a_terminal(scene.url, XDG_STATE_HOME=str(tmp_path)) as terminal,
    ):
        await terminal.read_until("scripted 1.0 serves scripted; try /help")
        await terminal.read_until(">")
        terminal.type("for ever\r")
        await terminal.read_until("[queued]")
        await terminal.read_until("a")
        terminal.type("\x03")
        await terminal.read_until("[cancelled]")
        terminal.type("abc\r")
        await terminal.read_until("[length: 2 tokens in")
        await terminal.read_until(">")
        terminal.type("half a line\x03")
        await terminal.read_until(">")
        terminal.type("\x04")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0
        sent = [body["text"] for peer in scene.peers for kind, body in peer.received[1:2]]
    assert sent == ["for ever", "abc"]
    history = tmp_path / "tandem" / HISTORY_NAME
    assert "abc" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o077 == 0


async def test_a_model_does_not_control_the_terminal(tmp_path: Path) -> None:
    async def rude(peer: Peer) -> None:
        await peer.greet()
        if len(scene.peers) == 1:
            return
        body = await peer.expect("GENERATE")
        await peer.token(body["stream_id"], 0, text="\x1b]0;mine\x07")
        await peer.done(body["stream_id"], "\x1b]0;mine\x07")
        await peer.until_closed()

    async with (
        performing(rude) as scene,
        on_a_terminal(scene.url, XDG_STATE_HOME=str(tmp_path)) as terminal,
    ):
        await terminal.read_until(">")
        terminal.type("abc\r")
        await terminal.read_until("␛]0;mine␇")
        assert "\x1b]0;mine" not in terminal.said
