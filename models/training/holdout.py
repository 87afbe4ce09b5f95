"""Which combinations are kept out of training: a stable hash of the combination decides."""

from zlib import crc32

from models.training.document import Split

ONE_IN = 10


def is_held_out(*key: object) -> bool:
    """True for one combination in ten, the same ones in every run and process."""
    return crc32("|".join(map(str, key)).encode()) % ONE_IN == 0


def belongs(split: Split, *key: object) -> bool:
    """Whether the combination may be used by that split."""
    return is_held_out(*key) == (split == "test")
