"""Frames cut anywhere come out whole."""

from hypothesis import given
from hypothesis import strategies as st

from proto.frames import Frame, FrameReader, frame_bytes


@given(st.lists(st.tuples(st.integers(0, 16), st.binary(max_size=40))), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_wherever_their_bytes_are_cut(
    frames: list[tuple[int, bytes]], piece_len: int
) -> None:
    sent = b"".join(frame_bytes(message, status) for status, message in frames)
    reader = FrameReader()
    pieces = [sent[start : start + piece_len] for start in range(0, len(sent), piece_len)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == [
        Frame(*frame) for frame in frames
    ]
