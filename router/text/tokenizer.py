"""Text to token ids and back.

Wraps the `tokenizers` library: reads tokenizer.json unchanged, keeps long texts off the event loop,
has each token's own text, and finds texts that are far too long for a model before all of them is
tokenized. It knows no requests and no models; no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias, TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from constraints.special_tokens import is_text, special_beside
from processes.worker_threads import WorkerThreads
from router.request.errors import ContextExceeded, InvalidRequest, StartupFailed, check_unicode
from router.text.control_tokens import ControlTokens, MarkedText
from router.text.token_texts import TokenTexts, build_token_texts
from router.text.tokenizer_files import TokenizerFiles, read_tokenizer_files

# Characters or tokens that are encoded or decoded in place. Measured on one 2 GHz core: 4000
# characters take 0.7 ms to encode, and going to a thread and back 0.3 ms.
_IN_PLACE_LEN = 4000
# Token ids index tables; no vocabulary comes near this.
_MAX_VOCAB_SIZE = 1 << 24
# One of these is a token of its own in front of most texts, so that the rest is what follows it.
_ANCHORS = ("\n", "a", ".", "0")
_Result = TypeVar("_Result")
# Its id, and the characters that it stands for.
Token: TypeAlias = tuple[int, int, int]
# Characters that are tokenized at once where only their number matters. A cut through a word, or a
# normalizer that sees the whole text, changes it by a few, never by a factor of two.
_MIN_PIECE_LEN = 1 << 14
_MAX_PIECE_LEN = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token and the part of the input that it stands for.

    `start` and `stop` are byte offsets into the input's UTF-8; `text` is what lies between them
    (all of a character when the token is only a part of it, "" for an added special token).
    """

    token_id: int
    text: str
    start: int
    stop: int


class Tokenizer:
    """The model's tokenizer. Safe to share between tasks; `close` ends its threads.

    `path` is its tokenizer.json. `vocab_size` is one more than the highest token id. `texts` is
    the table of token texts, None if the decoder does not take tokens one by one. In a MarkedText
    the texts of `control_tokens` that clients wrote are encoded as text. `special_tokens` are those
    that constraints take for no text, by their names.
    """

    def __init__(self, backend: Backend, files: TokenizerFiles, num_workers: int = 2) -> None:
        tokens = _tokens_by_id(backend, files.tokenizer_path)
        self.path: Path = files.tokenizer_path
        self._backend = backend
        self.special_ids = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        named_special = special_beside(files.tokenizer_path)
        self.special_tokens: Mapping[str, int] = {
            token.content: i
            for i, token in backend.get_added_tokens_decoder().items()
            if not is_text(token.content, token.special or token.content in named_special)
        }
        self.control_tokens = ControlTokens(
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        )
        self._workers = WorkerThreads(num_workers, "tokenizer")
        self.texts: TokenTexts | None = build_token_texts(backend, tokens, self.special_ids)
        self.vocab_size: int = len(tokens)
        self.bos_token: str | None = files.bos_token
        self.eos_token: str | None = files.eos_token
        self.model_max_len: int | None = files.model_max_len
        self.chat_templates: Mapping[str, str] = files.chat_templates
        self.response_template = files.response_template

    @classmethod
    def load(
        cls, folder: Path, config_path: Path | None = None, num_workers: int = 2
    ) -> "Tokenizer":
        """Read the tokenizer in `folder`; see `read_tokenizer_files` for `config_path`.

        Raises StartupFailed, which names the file at fault and what to do about it.
        """
        files = read_tokenizer_files(folder, config_path)
        try:
            backend = Backend.from_file(str(files.tokenizer_path))
        except Exception as error:  # the library raises bare Exception
            raise StartupFailed(
                f"{files.tokenizer_path} is not a tokenizer that the tokenizers library reads "
                f"({error}); download it again, or save it anew with a current transformers"
            ) from error
        # Both would change prompts: validation checks lengths, and batches are flat.
        backend.no_truncation()
        backend.no_padding()
        backend.add_tokens(list(files.added_tokens))
        return cls(backend, files, num_workers)

    def try_out(self) -> None:
        """Encodes once in a thread of its own, as requests do: the library starts its threads then.

        Where the system grants none, every later call would fail. Raises StartupFailed.
        """
        try:
            self._workers.start()
            self._workers.do(lambda: self.encode("a"))
        except BaseException as error:  # the library's panics are no Exception
            self.close()
            raise StartupFailed(
                f"the tokenizer cannot be used: {error or type(error).__name__}; are threads or"
                " processes limited too tightly (ulimit -u, pids.max)?"
            ) from error

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        field: str = "inputs",
        max_len: int | None = None,
    ) -> list[int]:
        """The token ids of `text`.

        Raises InvalidRequest when it is not valid Unicode, or has more than `max_len` tokens, which
        names `field`.
        """
        if isinstance(text, MarkedText):
            spans = self._spans(text, add_special_tokens, field, max_len)
            return [span.token_id for span in spans]
        encode = self._backend.encode_batch_fast
        encoding = self._encode(encode, text, add_special_tokens)
        _check_len(len(encoding), max_len, field)
        return encoding.ids

    async def encode_async(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        field: str = "inputs",
        max_len: int | None = None,
    ) -> list[int]:
        """`encode`, in a worker thread when the text is long."""

        def work() -> list[int]:
            return self.encode(
                text, add_special_tokens=add_special_tokens, field=field, max_len=max_len
            )

        return await self._run(text, work)

    async def count(self, text: str) -> int:
        """How many tokens `text` has by itself, in a worker thread when it is long."""

        def work() -> int:
            if isinstance(text, MarkedText):
                return len(self._marked_tokens(text))
            return len(self._encode(self._backend.encode_batch_fast, text, False))

        return await self._run(text, work)

    async def spans(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        field: str = "inputs",
        max_len: int | None = None,
    ) -> list[TokenSpan]:
        """The tokens of `text` with the bytes each stands for.

        Raises InvalidRequest, which names `field`, where they are more than `max_len`.
        """

        def work() -> list[TokenSpan]:
            return self._spans(text, add_special_tokens, field, max_len)

        return await self._run(text, work)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`, as the library decodes it.

        Ids without a token add nothing. One difference: where byte-fallback tokens in a row are
        not valid UTF-8, the library gives up all of their characters; here the whole ones stay
        and each byte left over is U+FFFD, so that a text does not change once it is shown.
        """
        if skip_special_tokens:
            # Not left to the library, which shows special tokens that are marked "normalized".
            token_ids = [i for i in token_ids if i not in self.special_ids]
        if not token_ids:  # some of the library's decoders panic at nothing
            return ""
        if len(token_ids) <= _IN_PLACE_LEN:
            text = self._backend.decode(token_ids, skip_special_tokens=False)
        else:  # only batches give up the interpreter's lock
            text = self._backend.decode_batch([token_ids], skip_special_tokens=False)[0]
        if "\ufffd" in text and self.texts is not None and self.texts.marks_bytes:
            return self.texts.join(token_ids)
        return text

    async def decode_async(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> str:
        """`decode`, in a worker thread when there are many tokens."""
        if len(token_ids) <= _IN_PLACE_LEN:
            return self.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return await self._in_worker(
            lambda: self.decode(token_ids, skip_special_tokens=skip_special_tokens)
        )

    def token_text(self, token_id: int) -> str:
        """A token by itself, as it reads behind other text; "" for an id without a token.

        Bytes that are not characters on their own are U+FFFD.
        """
        if self.texts is None:
            return self._backend.decode([token_id], skip_special_tokens=False)
        piece = self.texts.all[token_id] if token_id < self.vocab_size else None
        if isinstance(piece, bytes):
            return self.texts.decode_bytes(piece, final=True)[0]
        return piece or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, though it may be no whole character; b"" without a token.

        Where a decoder must see a token's neighbours only its characters are known: a byte that
        is none on its own is then U+FFFD.
        """
        piece: str | bytes | None
        if self.texts is None:
            piece = self.token_text(token_id)
        else:
            piece = self.texts.all[token_id] if token_id < self.vocab_size else None
        return piece.encode() if isinstance(piece, str) else piece or b""

    def spells_ascii(self) -> bool:
        """Whether each printable character of ASCII is a token of its own."""
        if self.texts is None:
            return False
        shown = {piece.encode() if isinstance(piece, str) else piece for piece in self.texts.shown}
        return all(bytes([byte]) in shown for byte in range(ord(" "), ord("~") + 1))

    def added_id(self, text: str) -> int | None:
        """The added token, special or not, whose text this is; None: there is none."""
        added = self._backend.get_added_tokens_decoder().items()
        return next((token_id for token_id, token in added if token.content == text), None)

    def is_special(self, token_id: int) -> bool:
        """True for tokens that `skip_special_tokens` leaves out."""
        return token_id in self.special_ids

    def close(self) -> None:
        """End the worker threads after their current work."""
        self._workers.close()

    def _encode(
        self, encode: Callable[..., list[Encoding]], text: str, add_special_tokens: bool
    ) -> Encoding:
        # `encode` is a batch call, with one text: others keep the interpreter's lock.
        try:
            return encode([text], add_special_tokens=add_special_tokens)[0]
        except Exception as error:  # the library raises bare Exception
            check_unicode(text, "inputs")
            raise InvalidRequest(f"`inputs` cannot be encoded: {error}", "inputs") from error

    def _marked_tokens(self, prompt: MarkedText) -> list[Token]:
        """Each run of the prompt by itself: control tokens divide texts anyway."""
        tokens: list[Token] = []
        start = 0
        for run in self.control_tokens.runs(prompt):
            backend = self._plain_backend if run.is_plain else self._backend
            anchor = self._anchor(run.text) if run.is_plain and start else ""
            encoding = self._encode(backend.encode_batch, anchor + run.text, False)
            shift = start - len(anchor)
            tokens += [
                (token_id, shift + first, shift + last)
                for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True)
                if first >= len(anchor)
            ]
            start += len(run.text)
        return tokens

    def _anchor(self, text: str) -> str:
        """What to put in front of a text that follows another one; see `continuation_ids`."""
        for anchor in ("", *_ANCHORS):
            whole = self._encode(self._plain_backend.encode_batch, anchor + text, False)
            pairs = zip(whole.ids, whole.offsets, strict=True)
            rest = [token_id for token_id, (first, _) in pairs if first >= len(anchor)]
            if _decodes_to(self, rest, text):
                return anchor
        return ""

    def _spans(
        self, text: str, add_special_tokens: bool, field: str, max_len: int | None
    ) -> list[TokenSpan]:
        if isinstance(text, MarkedText):
            tokens = self._marked_tokens(text)
            text = text.visible
            if add_special_tokens:
                tokens = self._with_ends(tokens, len(text))
        else:
            encoding = self._encode(self._backend.encode_batch, text, add_special_tokens)
            # A million tokens as Python's objects take a tenth of a second that nobody else gets.
            _check_len(len(encoding), max_len, field)
            offsets = zip(encoding.ids, encoding.offsets, strict=True)
            tokens = [(token_id, start, stop) for token_id, (start, stop) in offsets]
        # The library counts characters, the API counts bytes.
        byte_offsets: Sequence[int] = range(len(text) + 1)
        if not text.isascii():
            byte_offsets = list(accumulate((len(char.encode()) for char in text), initial=0))
        return [
            TokenSpan(token_id, text[start:stop], byte_offsets[start], byte_offsets[stop])
            for token_id, start, stop in tokens
        ]

    def _with_ends(self, tokens: list[Token], text_len: int) -> list[Token]:
        """With what the tokenizer puts around every text."""
        inner, whole = (
            self._encode(self._backend.encode_batch, "a", adds).ids for adds in (False, True)
        )
        first = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        before = whole[:first]
        behind = whole[first + len(inner) :]
        ends = ([(i, 0, 0) for i in before], [(i, text_len, text_len) for i in behind])
        return [*ends[0], *tokens, *ends[1]]

    @cached_property
    def _plain_backend(self) -> Backend:
        """A tokenizer to which control tokens' texts are text."""
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    async def _run(self, text: str, work: Callable[[], _Result]) -> _Result:
        """What `work` on the text returns; a short one is not worth the way to a thread."""
        if len(text) <= _IN_PLACE_LEN and not isinstance(text, MarkedText):
            return work()
        return await self._in_worker(work)

    async def _in_worker(self, work: Callable[[], _Result]) -> _Result:
        return await self._workers.run(work)


def _check_len(num_tokens: int, max_len: int | None, field: str) -> None:
    if max_len is not None and num_tokens > max_len:
        rule = f"must have at most {max_len} tokens"
        raise InvalidRequest(f"`{field}` {rule}. Given: {num_tokens}", field)


async def continuation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of `text` behind another text: no special tokens, and no added space.

    Some tokenizers put a space in front of every text, as if a word began there. One that changes
    its input (to small letters, say) does so here too. Raises InvalidRequest for invalid Unicode.
    """
    ids = await tokenizer.encode_async(text, add_special_tokens=False)
    if _decodes_to(tokenizer, ids, text):
        return ids
    for anchor in _ANCHORS:
        before = tokenizer.encode(anchor, add_special_tokens=False)
        whole = await tokenizer.encode_async(anchor + text, add_special_tokens=False)
        rest = whole[len(before) :]
        if whole[: len(before)] == before and _decodes_to(tokenizer, rest, text):
            return rest
    return ids


def _decodes_to(tokenizer: Tokenizer, ids: list[int], text: str) -> bool:
    return b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def _tokens_by_id(backend: Backend, path: Path) -> list[str | None]:
    ids = backend.get_vocab(with_added_tokens=True)
    if not ids:
        raise StartupFailed(f"{path} has an empty vocabulary; download it again")
    vocab_size = max(ids.values()) + 1
    if vocab_size > _MAX_VOCAB_SIZE:
        raise StartupFailed(
            f"{path} has token id {vocab_size - 1}; at most {_MAX_VOCAB_SIZE - 1} can be right"
        )
    tokens: list[str | None] = [None] * vocab_size
    for token, token_id in ids.items():
        tokens[token_id] = token
    for token_id in backend.get_added_tokens_decoder():
        # Not its content: the library decodes an added token as its normalizer left it.
        tokens[token_id] = backend.id_to_token(token_id)
    return tokens


async def check_fits(
    tokenizer: Tokenizer,
    text: str,
    max_len: int,
    field: str,
    *,
    chars_per_token: int = 4,
    margin: int = 2,
) -> None:
    """Raise ContextExceeded for a text that has far more than `max_len` tokens: `margin` times as
    many.

    Tokenizing megabytes takes seconds, wasted on a prompt that is refused, and taking the memory
    back of a million tokens as long as a health check may take. Texts of less than
    `chars_per_token` cost nothing; longer ones are tokenized in pieces until they are too many.
    """
    piece_len = min(max(_MIN_PIECE_LEN, chars_per_token * max_len), _MAX_PIECE_LEN)
    if len(text) <= max(2 * piece_len, chars_per_token * max_len):
        return
    num_tokens = 0
    for start in range(0, len(text), piece_len):
        num_tokens += await tokenizer.count(text[start : start + piece_len])
        if num_tokens > margin * max_len:
            raise ContextExceeded(
                f"`{field}` must have at most {max_len} tokens. Given: {num_tokens} in its first "
                f"{start + piece_len} of {len(text)} characters",
                field,
                num_prompt_tokens=num_tokens,
                max_prompt_len=max_len,
            )
