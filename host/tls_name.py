"""The server name in the first message of a TLS client, read by OpenSSL's own parser. Sans-IO."""

from __future__ import annotations

import ssl


class NotTLS(Exception):
    """What came is not the beginning of a TLS connection."""


class ServerNameReader:
    """Is fed what a client sends until ``feed`` returns True; then ``name`` is the server's name, None if it gave none."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._done = False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._found
        self._incoming = ssl.MemoryBIO()
        self._parser = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)

    def feed(self, data: bytes) -> bool:
        """Take in some bytes; return whether the message is complete.

        Raises:
            NotTLS: it can't become one any more.
        """
        self._incoming.write(data)
        try:
            self._parser.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as exc:  # the callback sees to it that it never gets further than the name
            if not self._done:
                raise NotTLS(exc.reason or "not TLS") from exc
        return True

    def _found(self, _connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self.name = name
        self._done = True
        return int(ssl.AlertDescription.ALERT_DESCRIPTION_ACCESS_DENIED)
