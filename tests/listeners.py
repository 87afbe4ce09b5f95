"""At which TCP addresses a process listens, by what the kernel says of it."""

import os
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"


def listening_at(pid: int) -> list[str]:
    """The addresses, in hexadecimal as Linux shows them."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, _, _, _, _, _, inode = line.split()[:10]
            if inode in own and state == _LISTENS:
                found.append(address.partition(":")[0])
    return found


def is_every_interface(address: str) -> bool:
    """Whether it is 0.0.0.0 or ::."""
    return not address.strip("0")
