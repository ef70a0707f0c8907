"""What the log's writer is given is written once, whole and in order."""

from __future__ import annotations

import os

from forebay.gateway.logs import LogWriter


def test_each_piece_is_written_once_however_little_the_pipe_takes_at_a_time() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # as somebody may have made our standard error
    pieces = [b"%d %b\n" % (i, b"x" * 50_000) for i in range(6)]
    writer = LogWriter(writing)
    writer.start()
    for piece in pieces:
        writer.write(piece)
    found = b""
    wanted = b"".join(pieces)
    while len(found) < len(wanted):
        found += os.read(reading, 1 << 20)
    writer.close()
    os.close(writing)
    found += os.read(reading, 1 << 20)  # its end
    os.close(reading)
    assert found == wanted
    assert writer.dropped == 0
