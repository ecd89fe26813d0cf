"""The report from a server on this machine alone, which saves picked pairs in one mapping file and compares again."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from probe.answer.comparison import Comparison
from probe.errors import ConfigError, MappingError, ProbeError
from probe.mapping import library, load_mapping
from probe.mapping.adding import Line, with_lines
from probe.ranks.opening import open_reader
from probe.report.html import as_html
from probe.report.html.document import beside
from probe.report.left_out import qualification

NEW_MAPPING = "layer_mapping.yaml"
"""what is written where no file of the user's is given as mapping, and none is named"""
_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost")
"""what a browser may call this machine: any other name in a request is a page elsewhere that had its name point here"""
_LARGEST = 1 << 20
"""bytes of a request"""
_MOST_LINES = 1000
_MOST_PARTS = 64
"""modules that are parts of one"""
_LONGEST = 20_000
"""characters of a name"""
_SECONDS = 30
"""within which a request must have come, all of it, and an answer must have been taken"""
_MOST_CONNECTIONS = 32
"""at a time; a browser opens six"""
_HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip

Compare = Callable[[str | None], Comparison]


class Session:
    """A comparison, and the one file into which pairs are saved.

    Parameters
    ----------
    compare
        compares both recordings with the mapping that it is given
    mapping
        what to begin with: a file, the name of one that comes with probe, or None
    save_to
        the file to write; when None the mapping itself, or a new `NEW_MAPPING` where that is no file

    Raises
    ------
    ConfigError
        there is no such file to write, or it would be lost
    ProbeError
        the recordings cannot be compared
    """

    def __init__(self, compare: Compare, mapping: str | None, save_to: str | None) -> None:
        self.file = _target(mapping, save_to)
        self._compare, self._mapping = compare, mapping
        self._lock = threading.Lock()
        self._said = ""
        self.comparison = compare(mapping)

    def page(self) -> str:
        """Return the report as it is now."""
        with self._lock:
            return as_html(self.comparison, {"file": self.file.name, "said": self._said})

    def save(self, lines: list[Line]) -> None:
        """Put lines into the file and compare again; where that fails the file is as it was.

        Raises
        ------
        ProbeError
            the lines are no mapping, the file cannot be written, or nothing can be compared with it
        """
        with self._lock:
            before = self.file.read_bytes() if self.file.exists() else None
            _write(self.file, with_lines(self._text(before), self.file.name, lines).encode())
            try:
                after = self._compare(str(self.file))
            except BaseException:
                _put_back(self.file, before)
                raise
            self._said = _news(self.comparison, after, len(lines), self.file.name)
            self._mapping, self.comparison = str(self.file), after

    def wait(self) -> None:
        """Return when nothing is being saved."""
        with self._lock:
            pass

    def _text(self, before: bytes | None) -> str:
        """Return what lines are put into: the file's text, or that of the mapping to begin with, and a draft of what was guessed."""
        text = ""
        if before is not None:
            text = _decoded(before, self.file)
        elif self._mapping is not None:
            path = Path(self._mapping) if Path(self._mapping).is_file() else library()[self._mapping]
            text = _decoded(path.read_bytes(), path)
        with open_reader(self.comparison.path_a) as a, open_reader(self.comparison.path_b) as b:
            return text + beside(self.comparison, a, b)["base"]


def _target(mapping: str | None, save_to: str | None) -> Path:
    """Return the file to save into, with links followed."""
    own = Path(mapping) if mapping is not None and Path(mapping).is_file() else None
    if save_to is None and own is None:
        save_to = NEW_MAPPING
    if mapping is not None:
        load_mapping(mapping)
    path = (own if save_to is None else Path(save_to)).resolve()
    if path.exists() and (own is None or path != own.resolve()):
        raise ConfigError(
            f"{save_to} is there already: give it as -lm {save_to} to add to it, or name a new file with --save-to"
        )
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: expected a folder that can be written, {path.parent} is none")
    return path


def _decoded(text: bytes, path: Path) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MappingError(f"{path} is not UTF-8 (byte {error.start}): nothing was saved") from None


def _write(path: Path, text: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        raise MappingError(f"cannot write {path}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def _put_back(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink()
    else:
        _write(path, before)


def _news(before: Comparison, after: Comparison, count: int, name: str) -> str:
    """Say in a line what came of it."""
    lines = "1 line" if count == 1 else f"{count} lines"
    calls = [f"{each.coverage.paired} of {each.coverage.total}" for each in (before, after)]
    verdicts = [f"{each.verdict.value}{qualification(each.verdict, each.left_out)}" for each in (before, after)]
    verdict = f"still {verdicts[1]}" if verdicts[0] == verdicts[1] else f"{verdicts[0]} before, {verdicts[1]} now"
    return f"Saved {lines} in {name} and compared again: {verdict}; {calls[0]} module calls compared before, {calls[1]} now."


class Server(ThreadingHTTPServer):
    """Serves one session below a path that nobody can guess.

    Parameters
    ----------
    session
        what to show
    port
        0 for a free one
    """

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session, self.token = session, secrets.token_urlsafe(24)
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__((_HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on port {port} of {_HOST}: {error}") from None

    @property
    def url(self) -> str:
        """Where the report is."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own; close the connection where there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request, and make room for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that were broken off."""


class _Handler(BaseHTTPRequestHandler):
    """GET of the page, POST of pairs, and nothing else."""

    server: Server
    server_version, sys_version = "probe", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Within(self.connection, _SECONDS))

    def do_GET(self) -> None:
        if self._is_allowed(""):
            self._answer(200, self.server.session.page(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._is_allowed("pairs"):
            return
        try:
            self.server.session.save(self._lines())
        except _Refused as error:
            self._refuse(*error.args)
        except ProbeError as error:
            self._refuse(422, str(error))
        else:
            self._answer(200, "{}", "application/json")

    def _is_allowed(self, page: str) -> bool:
        """Answer a request that must not be, or is for something else."""
        hosts = [f"{name}:{self.server.server_port}" for name in _NAMES]
        if self.headers.get_all("Host", []) not in [[host] for host in hosts]:
            self._refuse(403, "this report is for this machine alone")
        elif self.headers.get("Origin") not in (None, *(f"http://{host}" for host in hosts)):
            self._refuse(403, "another page asked for it")
        elif not secrets.compare_digest(self.path.encode("utf-8", "replace"), f"/{self.server.token}/{page}".encode()):
            self._refuse(404, "there is nothing here")
        else:
            return True
        return False

    def _lines(self) -> list[Line]:
        """Return what the page sent."""
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "expected JSON")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise _Refused(411, "expected a length")
        if int(length) > _LARGEST:
            raise _Refused(413, f"expected at most {_LARGEST} bytes")
        try:
            sent = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "expected JSON") from error
        if not isinstance(sent, list) or not 0 < len(sent) <= _MOST_LINES or not all(map(_is_line, sent)):
            raise _Refused(
                400,
                f"expected 1 to {_MOST_LINES} lines, each with section, key and target, one of which may be several",
            )
        return [Line(**each) for each in sent]

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._answer(status, json.dumps({"error": text}), "application/json")

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.connection.settimeout(_SECONDS)  # for all of it
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address has the token in it."""


class _Within(io.RawIOBase):
    """What comes by a socket within some seconds, all in all: one byte now and then does not keep it open."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come. Raises TimeoutError."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Refused(Exception):
    """A request that cannot be answered: status and why."""


def _is_line(sent: object) -> bool:
    if not isinstance(sent, dict) or sent.keys() != {"section", "key", "target"}:
        return False
    several = [sent[name] for name in ("key", "target") if isinstance(sent[name], list)]
    names = [each for value in sent.values() for each in (value if value in several else [value])]
    is_of_one = len(several) <= 1 and all(1 < len(value) <= _MOST_PARTS for value in several)
    return is_of_one and all(isinstance(text, str) and 0 < len(text) <= _LONGEST for text in names)
