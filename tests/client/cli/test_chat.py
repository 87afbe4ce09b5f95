"""Dialogues of `launcher client` with a server, on a terminal and through pipes; its lines."""

import asyncio
import json
import re
import signal
from asyncio.subprocess import PIPE
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.calls import Constraint, GenerateCall
from client.cli.chat import HISTORY_NAME, Chat, call_of, read_line
from client.cli.terminal import Screen
from client.errors import BadInput
from client.lmtp.model import LmtpModel
from client.sampling import Sampling
from tests.client.cli.on_terminal import ARGV, on_a_terminal
from tests.client.lmtp.peer import GREETING, Peer, performing, performing_aside
from tests.command_line import run_launcher


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


def piped(*args: str, stdin: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    said = run_launcher("client", *args, stdin=stdin)
    return said.returncode, said.stdout, said.stderr


def test_each_line_of_a_pipe_is_answered_on_stdout() -> None:
    with performing_aside(echo) as scene:
        code, out, err = piped(scene.url, stdin="abc\n\ndef temperature=0.5\nlast")
        sent = [body for peer in scene.peers for kind, body in peer.received if kind == "GENERATE"]
    assert (code, out, err) == (0, "abc\ndef\nlast\n", "")
    assert [body["temperature"] for body in sent] == [0.0, 0.5, 0.0]


def test_the_model_and_the_place_may_come_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    with performing_aside(echo) as scene:
        monkeypatch.setenv("TANDEM_URL", scene.url)
        monkeypatch.setenv("TANDEM_API_KEY", "sesame")
        assert piped(stdin="abc\n")[:2] == (0, "abc\n")
        monkeypatch.delenv("TANDEM_URL")
        code, out, _ = piped(scene.url, "scripted", "--api-key", "other", stdin="abc\n")
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


async def think(peer: Peer) -> None:
    """Answers a chat with a thought of two tokens and a text, whose end comes last."""
    stream_id = (await peer.first("GENERATE", features=["text", "messages"]))["stream_id"]
    await peer.token(stream_id, 0, text="", reasoning="Easy")
    await peer.token(stream_id, 1, text="Fo", reasoning=".\nYes")
    await peer.token(stream_id, 2, text="u")
    await peer.done(stream_id, "Four", reasoning=".\nYes")


@pytest.mark.parametrize("is_interactive", [True, False])
async def test_a_thought_is_one_line_until_it_is_asked_for(
    tmp_path: Path, *, is_interactive: bool
) -> None:
    out, err = StringIO(), StringIO()
    kept = tmp_path / "chat.json"
    async with performing(think) as scene:
        chat = Chat(lambda: LmtpModel(scene.url), Screen(out, err), is_interactive)
        await chat.greet()
        for line in ("/thought", "2+2?", "/thought", f"/save {kept}", f"/load {kept}", "Sure?"):
            assert await chat.answer(line)
        sent = [body for peer in scene.peers for kind, body in peer.received if kind == "GENERATE"]
    notes = re.sub(r"for \d\.\d s", "for 0.0 s", err.getvalue()).splitlines()
    folded = ["[thinking ...]", "[thought for 0.0 s, 2 tokens; /thought shows it]"]
    shown = [note for note in notes if note in (*folded, "[no thought]")]
    assert shown == ["[no thought]", *(folded * 2 if is_interactive else [])]
    assert out.getvalue() == "Four\nEasy.\nYes\nFour\n"
    answered = sent[1]["messages"][1]
    assert answered == {"role": "assistant", "content": "Four", "reasoning_content": "Easy.\nYes"}
    assert [each["include_reasoning"] for each in sent] == [True, True]


async def test_images_go_out_with_the_next_message_and_are_kept_with_the_chat(
    tmp_path: Path,
) -> None:
    image = tmp_path / "a.jpg"
    image.write_bytes(b"\1\2\3")
    kept = tmp_path / "chat.json"
    lines = (f"/image {image}", "/image https://a.example/b", "What?", "More?", f"/save {kept}")
    async with performing(think) as scene:
        done, _, err = await talked(scene.url, "/chat", *lines, f"/load {kept}", "Again?")
        sent = [body for peer in scene.peers for kind, body in peer.received if kind == "GENERATE"]
    urls = ("data:image/jpeg;base64,AQID", "https://a.example/b")
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    asked = {"role": "user", "content": [*shown, {"type": "text", "text": "What?"}]}
    assert all(done)
    assert "[1 image for the next message]\n[2 images for the next message]" in err
    assert [body["messages"][0] for body in sent] == [asked] * 3
    assert sent[1]["messages"][-1] == {"role": "user", "content": "More?"}


async def test_an_image_that_is_no_file_is_refused() -> None:
    async with performing(think) as scene:
        done, _, err = await talked(
            scene.url, "/chat", "/image /nothing.png", "/raw", "/image a.png"
        )
    assert done == [True, False, True, False]
    assert "error: /nothing.png: No such file or directory" in err
    assert "error: /image: a text that is gone on with has no images" in err


async def test_errors_go_to_stderr_and_the_rest_is_answered() -> None:
    lines = ("bad", "abc temperature=hot", "/nothing", "abc")
    async with performing(echo) as scene:
        done, out, err = await talked(scene.url, *lines)
    assert (done, out) == ([False, False, False, True], "abc\n")
    assert err.splitlines() == [
        "error: it went wrong",
        "error: temperature must be a number. Given: hot",
        "error: /nothing: no such command; there are /system, /clear, /save, /load, /image, "
        "/thought, /set, /schema, /where, /raw, /chat, /models, /info, /help, /quit",
    ]


def test_a_wrong_line_shows_in_the_exit_code() -> None:
    with performing_aside(echo) as scene:
        code, out, err = piped(scene.url, stdin="bad\nabc\n")
    assert (code, out, err) == (1, "abc\n", "error: it went wrong\n")


def test_info_help_and_quit_are_no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than what is shown of a parameter.
    features = [f"feature-{number}" for number in range(20)]
    monkeypatch.setitem(GREETING, "features", features)
    with performing_aside(echo) as scene:
        code, out, _ = piped(scene.url, stdin="/info\n/help\n/quit\nabc\n")
        assert [kind for peer in scene.peers for kind, _ in peer.received] == ["HELLO", "HELLO"]
    assert code == 0
    assert "server: scripted 1.0\nmodels: scripted\n" in out
    assert f"features: {', '.join(features)}\n" in out
    assert "max_tokens=50 temperature=0.7" in out


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1"])
def test_no_server_is_one_clear_line(url: str) -> None:
    code, out, err = piped(url, stdin="a")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


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


async def until_gone(peer: Peer) -> None:
    """The connection is closed, which frees the request at the server."""
    await asyncio.wait_for(peer.socket.wait_closed(), 30)


async def test_on_a_terminal_ctrl_c_cancels_what_runs_and_ctrl_d_leaves(tmp_path: Path) -> None:
    async with (
        performing(echo) as scene,
        on_a_terminal(scene.url, XDG_STATE_HOME=str(tmp_path)) as terminal,
    ):
        await terminal.read_until(
            "scripted 1.0 serves scripted, without a chat template; try /help"
        )
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


@pytest.mark.parametrize(
    ("text", "prompt", "parameters"),
    [
        ("Once upon a time", "Once upon a time", {}),
        (
            "Once temperature=0.7 max_tokens=50",
            "Once",
            {"temperature": 0.7, "max_tokens": 50},
        ),
        (r'Once stop="\n"', "Once", {"stop": ["\n"]}),
        ('Once stop=["a b", "c"] seed=1', "Once", {"stop": ["a b", "c"], "seed": 1}),
        (
            'Once where="len(words(X)) < 5"',
            "Once",
            {"where": "len(words(X)) < 5"},
        ),
        ('Once stop="["', "Once", {"stop": ["["]}),
        ('Once choice=["a b","c"]', "Once", {"choice": ["a b", "c"]}),
        ('Once json={"type":"integer"}', "Once", {"json": {"type": "integer"}}),
        ('Once json=\'{"type": "integer"}\'', "Once", {"json": {"type": "integer"}}),
        ("if a==b then top_k=3", "if a==b then", {"top_k": 3}),
        ("2x=5", "2x=5", {}),
        (r'"two\nlines x=3" seed=1', "two\nlines x=3", {"seed": 1}),
        ('"said" he', '"said" he', {}),
        ("temperature=0.5", None, {"temperature": 0.5}),
        ("temperature= top_k=3", None, {"temperature": None, "top_k": 3}),
        ("seed=1 Once", "seed=1 Once", {}),
        ('""', "", {}),
    ],
)
def test_a_line_is_a_prompt_and_parameters_at_its_end(
    text: str, prompt: str | None, parameters: dict[str, object]
) -> None:
    line = read_line(text)
    assert (line.prompt, dict(line.parameters)) == (prompt, parameters)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Once temperature=hot", "temperature must be a number. Given: hot"),
        ("Once max_tokens=1.5", "max_tokens must be a whole number. Given: 1.5"),
        ("Once stop=[\"a b\", 'c']", "JSON list of strings. Given: [\"a b\", 'c']"),
        ("Once choice=yes", "choice must be a JSON list of strings. Given: yes"),
        ("Once json=[", "json must be a JSON schema. Given: ["),
        (
            "Once temprature=1",
            "temprature=1: no parameter has this name; did you mean temperature?",
        ),
        ("Once x=1", "x=1: no parameter has this name; there are max_tokens,"),
        (r'Once stop="\x"', "truncated"),
    ],
)
def test_a_wrong_parameter_names_key_value_and_rule(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_line(text)
    assert said in str(caught.value)


def test_parameters_become_a_request() -> None:
    line = read_line('Once temperature=0.7 seed=3 max_tokens=5 stop="x" where="len(X) < 5"')
    assert line.prompt is not None
    assert call_of(line.prompt, line.parameters) == GenerateCall(
        prompt="Once",
        sampling=Sampling(temperature=0.7, seed=3),
        max_tokens=5,
        stop=("x",),
        constraint=Constraint("where", "len(X) < 5"),
    )


def test_two_constraints_exclude_each_other() -> None:
    with pytest.raises(BadInput, match="where and regex exclude each other"):
        call_of("Once", {"where": "len(X) < 5", "regex": "a"})


@given(
    prompt=st.text(alphabet='ab ."', min_size=1).map(lambda text: f"x{text}x"),
    num=st.integers(-5, 5),
    stop=st.text(alphabet="a=\" '\n\\é", min_size=1),
)
def test_what_is_written_is_what_is_read(prompt: str, num: int, stop: str) -> None:
    line = read_line(f"{prompt} max_tokens={num} stop={json.dumps(stop)}")
    assert (line.prompt, dict(line.parameters)) == (prompt, {"max_tokens": num, "stop": [stop]})


@given(st.text(alphabet="ab=\"'[{ \\\x00", max_size=12))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        line = read_line(text)
    except BadInput:
        return
    assert line.prompt is not None or line.parameters


# Each value is read as far as it goes, without a second try.
