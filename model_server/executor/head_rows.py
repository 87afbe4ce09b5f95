"""In which order an executor keeps the numbers of queries and keys."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model_server.recipe.recipe import Head


def rows_of_heads(
    head: Head, heads: Sequence[int], head_dim: int, angles_len: int
) -> npt.NDArray[np.int64]:
    """The outputs of `head.linear` that these heads are made of, [len(heads) * head_dim].

    What turns together lies in the halves of the rotated part, whatever the recipe's pairing is.

    angles_len: how many angles its rope has
    """
    order = np.arange(head_dim)
    if head.rope is not None and head.rope.pairing == "interleaved":
        pairs = order[: 2 * angles_len].reshape(-1, 2)
        order = np.concatenate((pairs[:, 0], pairs[:, 1], order[2 * angles_len :]))
    return (np.array(heads)[:, None] * head_dim + order).ravel()
