"""The tokenizer: byte-level BPE whose words and names fall into the same tokens everywhere.

A capitalised word never takes the space before it, so a name is the same tokens after a space, a
quote or a line break, and can be copied. Digits, punctuation and spaces stay single; `<<` and `>>`
are tokens, so `=` is always one token on which a calculator can stop.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from models.training import chat, corpus, names
from models.training.document import ASSISTANT, END, PAD, SPECIAL_TOKENS, SYSTEM, USER, text_of

VOCAB_SIZE = 4096
MAX_LEN = 1024
_WORDS = Regex(r"<<|>>| ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{N}|\s|[^\s\p{Ll}\p{Lu}\p{N}]")
_NUM_DOCUMENTS, _NUM_NAMES = 1500, 12000
# A name occurs about once in the tokenizer's corpus, so syllables are merged and names are not.
_LEAST = 6

_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role ' ~ message['role'] ~ ' is none of system, user, assistant') }}"
    "{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '" + END + "' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def _texts(rng: Random) -> Iterator[str]:
    """Every kind of document, then names of the training pool, each about once."""
    for kind in corpus.KINDS:
        for _ in range(_NUM_DOCUMENTS):
            text = text_of(kind.draw(rng))
            for special in SPECIAL_TOKENS:
                text = text.replace(special, "\n")
            yield text
    for _ in range(_NUM_NAMES):
        yield names.draw_someone(rng, "train").full
        yield names.draw_town(rng, "train")
    yield from chat.known_words()


def train(seed: int) -> Tokenizer:
    """A tokenizer of VOCAB_SIZE entries, the special tokens first."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = PreTokenizers(
        [Split(_WORDS, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=_LEAST,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(Random(f"tokenizer/{seed}")), trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (with the chat template)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        # Its older name: transformers before version 5 knows no other for a list.
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LEN,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def encoder(tokenizer: Tokenizer) -> corpus.Encoder:
    """The corpus' view of a tokenizer."""

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

    return encode
