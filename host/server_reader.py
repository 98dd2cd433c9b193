"""Bytes → one answer: what somebody else's server says in HTTP/1.1, read strictly (by llhttp) and bounded. No I/O.

1. A head of up to 64 KiB, after a few preliminary ones. No body is packed for transfer but in chunks.
2. The body is given on in pieces as they come. What is no body and has no end (extensions of chunks, trailers) is an error.
3. What follows the answer was not asked for: the connection is of no more use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_HEAD_BYTES = 64 * 1024
"""Also between two pieces of a body."""

_MAX_INFORMATIONAL = 8
_MAX_PIECES = 250_000
"""Of one body. In the smallest sensible pieces, 4 KB, the largest result is 16,000."""

_BODILESS = (204, 304)


class HttpError(Exception):
    """No answer."""


class Refused(HttpError):
    """The server takes no connection: nothing was sent."""


class Broken(HttpError):
    """The connection broke off. What was sent may have been read."""


class BadAnswer(HttpError):
    """What came is not HTTP, or over a limit."""


@dataclass(frozen=True)
class Head:
    """An answer's status and headers; their names in lower case, of two with the same name the last."""

    status: int
    headers: Mapping[bytes, bytes]


class AnswerReader:
    """Feed it what the connection gave; take ``head`` and ``pieces`` out."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        """Of the body, as far as they were not taken."""
        self.complete = False
        self.reusable = True
        """False if the connection can't be used for another request."""
        self._parser = HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._heads = 0
        self._count = 0
        self._idle_bytes = 0  # since the last piece, or the beginning
        self._ends_with_connection = False

    @property
    def has_news(self) -> bool:
        """True if there is something to take: of a success, more than a head, which says little."""
        return bool(self.pieces) or self.complete or (self.head is not None and self.head.status != 200)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Read some bytes.

        Raises:
            BadAnswer: they can't belong to an answer, or one is over a limit.
        """
        if self.complete:
            self.reusable = False
            return
        count = self._count
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise BadAnswer("not HTTP: it changes to another protocol") from None
        except HttpParserCallbackError as exc:
            if isinstance(exc.__context__, BadAnswer):
                raise exc.__context__ from None
            raise
        except HttpParserError as exc:
            self.reusable = False
            if not self.complete:
                raise BadAnswer(f"not HTTP: {exc}") from None
        self._idle_bytes = len(data) if self._count != count else self._idle_bytes + len(data)
        if self._idle_bytes > _MAX_HEAD_BYTES and not self.complete:
            raise BadAnswer(f"not HTTP: more than {_MAX_HEAD_BYTES} bytes that are no body")

    def end(self) -> bool:
        """Take note that the connection has ended; tell whether the answer is whole."""
        self.reusable = False
        self.complete = self.complete or self._ends_with_connection
        return self.complete

    # What the parser reports

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        self._heads += 1
        if status < 200:
            if self._heads > _MAX_INFORMATIONAL:
                raise BadAnswer("preliminary answers without end")
            return
        headers = dict(self._headers)
        coded = [value for name, value in self._headers if name == b"transfer-encoding"]
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            raise BadAnswer("not HTTP: another version than 1.1")
        if coded and (len(coded) > 1 or coded[0].lower() != b"chunked"):
            raise BadAnswer("not HTTP: a body that is packed for transfer")
        self.reusable = self._parser.should_keep_alive()
        self._ends_with_connection = not coded and b"content-length" not in headers and status not in _BODILESS
        self.head = Head(status, headers)

    def on_body(self, piece: bytes) -> None:
        if self.complete:
            return
        self._count += 1
        if self._count > _MAX_PIECES:
            raise BadAnswer(f"an answer in more than {_MAX_PIECES} pieces")
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = self.head is not None
