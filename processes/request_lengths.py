"""The settings of the longest request, which router and shards have in common.

The router keeps requests within them; a shard refuses, before it reads weights, what its model
cannot hold.
"""

from typing import Any

from processes.rules import Whole
from processes.settings import Group, setting


def max_input_tokens() -> Any:
    return setting(
        None,
        "longest prompt; absent: --max-total-tokens less one",
        Whole(1),
        group=Group.REQUEST,
        aliases=("max_input_length",),
    )


def max_total_tokens() -> Any:
    return setting(
        None,
        "longest prompt and answer together; absent: what the model and the KV cache hold",
        Whole(2),
        group=Group.REQUEST,
    )
