"""Server-sent events as both public clients read them. Pure: text in, bytes out.

What their parser does to us, and the rule that follows:

1. It strips white space from the front of every ``data:`` value. So no piece of a result but the first may begin with white
   space (anything ``str.lstrip`` removes), or the result arrives silently shorter.
2. It crashes on a line without a colon, and its reader on a line over 128 KiB. So every line is ``field: value`` and short.
3. It goes by lines. So a value never holds a line break: JSON escapes them, and an error's text is sent line by line.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK_CHARS = 4096
"""The largest piece of a result, in characters (the documents say 4 KB; the public servers count characters)."""

MAX_ERROR_CHARS = 16 * 1024
"""An error's text is for people; at four bytes a character this keeps any line of it under the clients' 128 KiB."""

PING = b": ping\r\n\r\n"


def event(name: str, data: str) -> bytes:
    """Return one event whose data is a single line."""
    return f"event: {name}\r\ndata: {data}\r\n\r\n".encode()


def error(text: str) -> bytes:
    """Return the ``error`` event, which ends a stream: one ``data:`` line for each line of ``text``, cut if very long."""
    if len(text) > MAX_ERROR_CHARS:
        text = f"{text[:MAX_ERROR_CHARS]}… (cut: {len(text)} characters)"
    lines = text.splitlines() or [""]
    data = "".join(f"data: {line}\r\n" for line in lines)
    return f"event: error\r\n{data}\r\n".encode(errors="replace")


def result(json_text: str) -> Iterator[bytes]:
    """Yield the events of a result: ``chunk`` for all pieces but the last, ``end`` for the last.

    ``json_text`` is compact JSON: any white space in it stands inside a string, where it may also be written ``\\uXXXX``.
    """
    pieces = _pieces(json_text)
    piece = next(pieces)
    for following in pieces:
        yield event("chunk", piece)
        piece = following
    yield event("end", piece)


def _pieces(text: str) -> Iterator[str]:
    start, size = 0, len(text)
    first = ""  # what the next piece begins with in place of a white-space character
    while size - start + len(first) > CHUNK_CHARS:
        border = start + CHUNK_CHARS - len(first)
        moved = border
        while moved > start and text[moved].isspace():
            moved -= 1
        if moved > start:
            yield first + text[start:moved]
            first, start = "", moved
        else:  # white space over the whole piece: escape one character so that the border may stay
            yield first + text[start:border]
            first, start = f"\\u{ord(text[border]):04x}", border + 1
    yield first + text[start:]
