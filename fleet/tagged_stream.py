"""An event stream that can go on at another replica: comments of its replica have its state.

    : tandem begin {...}            ids and draws; the next replica needs them
    (events)
    : tandem out INDEX ID,ID,...    the tokens of choice INDEX that the events before it show

The comments stay here. Events wait for the comment behind them, so that what the client has, and
what the next replica takes it to have, are the same.
"""

import orjson

_TAG = b": tandem "
_END = b"\n\n"


class TaggedStream:
    """What of one answer has come, and what of it may be passed on, whichever replicas it is from.

    A stream that does not begin with a tag is passed on as it is, and cannot go on elsewhere.
    """

    def __init__(self) -> None:
        self._begin: bytes | None = None
        # By choice.
        self._out: list[list[bytes]] = []
        self._has_shown = False
        self._has_tags = True
        self._partial = b""
        self._held: list[bytes] = []

    @property
    def can_move(self) -> bool:
        """Whether the state is known that another replica needs."""
        return self._begin is not None

    @property
    def has_shown(self) -> bool:
        """Whether an event was passed on, more than signs of life."""
        return self._has_shown

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now that this has come."""
        if not self._has_tags:
            return chunk
        *groups, self._partial = (self._partial + chunk).split(_END)
        passed = b""
        for number, group in enumerate(groups):
            if group.startswith(_TAG):
                passed += self._read(group.removeprefix(_TAG))
            elif group.startswith(b":") and not self._held:
                # A sign of life, which is none if it waits.
                passed += group + _END
            elif self._begin is None:
                self._has_tags = False
                self._has_shown = True
                self._held = [each + _END for each in groups[number:]]
                return passed + self.finish()
            else:
                self._held.append(group + _END)
        return passed

    def finish(self) -> bytes:
        """What remains, now that the answer is complete."""
        rest = b"".join([*self._held, self._partial])
        self.moved()
        return rest

    def moved(self) -> None:
        """What waited is lost: another replica goes on behind what was passed on."""
        self._partial = b""
        self._held.clear()

    def so_far(self) -> bytes:
        """The state for the next replica, in JSON."""
        assert self._begin is not None, "it can move"
        # Of a choice of which nothing has come, there is nothing.
        num_choices = len(orjson.loads(self._begin).get("cached", ()))
        lists = self._out + [[]] * (num_choices - len(self._out))
        out = b",".join(b"[%b]" % b",".join(ids) for ids in lists)
        return b'{"begin":%b,"out":[%b]}' % (self._begin, out)

    def _read(self, tag: bytes) -> bytes:
        """Act by one; the events that it lets pass."""
        kind, _, said = tag.partition(b" ")
        if kind == b"begin":
            self._begin = said
        if kind != b"out":
            return b""
        index, _, ids = said.partition(b" ")
        while len(self._out) <= int(index):
            self._out.append([])
        if ids:
            self._out[int(index)].append(ids)
        passed = b"".join(self._held)
        self._has_shown |= bool(passed)
        self._held.clear()
        return passed
