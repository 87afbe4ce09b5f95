"""Keeps the C library from giving freed memory back to the kernel after every operation.

Eager torch on a CPU makes and frees tensors of megabytes all the time. glibc returns such memory at
once and the kernel fills the next piece with zeros, page by page: a sampling step of 32 rows over
32 000 tokens takes up to three times as long for it. It knows nothing of what is computed.
"""

import ctypes
import sys

# mallopt(3). The threshold is the largest that glibc accepts: greater pieces are still mapped.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 * 2**20


def keep_freed_memory(kept_bytes: int = 512 * 2**20) -> bool:
    """From here on up to `kept_bytes` of freed memory stay with the process.

    To be called once, when the weights are loaded, so that what loading freed has gone. False where
    the C library has no such setting, in which case nothing has changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_TRIM_THRESHOLD, kept_bytes))
    return all(mallopt(name, value) == 1 for name, value in settings)
