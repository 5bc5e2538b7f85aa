"""Messages between the pytest worker, the zygote and its runners, and the framing that carries them.

A frame is a 4-byte little-endian length and a msgpack body, over a Unix stream socket. The supervisor never blocks in
the middle of a frame (a runner may die or be stopped while it writes one); the other side may.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from conformance.cases import Case, Options

_HEADER = struct.Struct("<I")
LARGEST_FRAME = 256 * 2**20  # a longer length is a broken stream, not a message


class BrokenStream(Exception):
    """The bytes on the socket are not frames of ours: whatever wrote them must not be trusted."""


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base of everything on the wire; the class name is the tag."""


# supervisor -> zygote


class ListCases(Message):
    suite: str
    options: Options


class WarmUp(Message):
    """Compile something trivial now, so that runners inherit what upstream imports lazily."""


class Fork(Message):
    """Fork a runner; one byte with the runner's socket attached follows."""


class Reap(Message):
    pid: int


# zygote -> supervisor


class Hello(Message):
    pid: int
    backend: str
    device: str
    version: str
    capabilities: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str]
    threads: int  # of the zygote; more than one is not safe to fork
    rss: int  # bytes
    seconds: float


class CaseList(Message):
    suite: str  # as asked for
    name: str  # as it calls itself
    cases: tuple[Case, ...]
    excluded: dict[str, int]
    facts: dict[str, Any]  # for the manifest
    expectations_dir: str  # "" where it has none
    seconds: float | None = None  # limit of a sample where the user sets none
    memory: int | None = None  # likewise, bytes


class Failed(Message):
    """What was asked for cannot be done; `reason` is one line for the user, `detail` the traceback."""

    reason: str
    detail: str = ""


class WarmedUp(Message):
    threads: int
    seconds: float
    error: str = ""


class Forked(Message):
    pid: int
    rss: int  # of the zygote at the fork, bytes


class Reaped(Message):
    pid: int
    status: int  # as from waitpid
    max_rss: int  # bytes
    strays: int  # processes that the runner left behind, now killed


# supervisor -> runner


class RunCase(Message):
    suite: str
    case: Case
    first: int  # index of the first sample to run
    skip: tuple[int, ...]  # indices after it that need not be run
    options: Options
    time_limit: float  # seconds a sample
    memory_limit: int  # bytes a sample, above what the zygote uses; 0: none


class Go(Message):
    """The start of the sample is on disk: run it."""


# runner -> supervisor


class Ready(Message):
    """The backend is set up."""


class Starting(Message):
    index: int
    digest: str
    numerics: str


class Recorded(Message):
    record: msgspec.Raw  # an encoded Record


class CaseDone(Message):
    samples: int  # how many samples the case has, those before `first` included
    rss: int  # of the runner, bytes


_BY_SENDER = {
    "supervisor": ListCases | WarmUp | Fork | Reap | RunCase | Go,
    "child": Hello | CaseList | Failed | WarmedUp | Forked | Reaped | Ready | Starting | Recorded | CaseDone,
}
_encoder = msgspec.msgpack.Encoder()
_decoders = {sender: msgspec.msgpack.Decoder(union) for sender, union in _BY_SENDER.items()}


class Channel:
    """One end of a socket. `sender` is who is at the other end: "supervisor" or "child"."""

    def __init__(self, sock: socket.socket, sender: str) -> None:
        self.sock = sock
        self._decoder = _decoders[sender]
        self._buffer = bytearray()
        self.closed = False  # the other end is gone

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        """Raises `OSError` (usually `BrokenPipeError`) when the other end is gone."""
        body = _encoder.encode(message)
        self.sock.sendall(_HEADER.pack(len(body)) + body)

    def receive(self) -> Any:
        """Block until one whole message is here; read not a byte more. Raises `EOFError` when the other end is gone."""
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size))
        return self._decode(self._exactly(length))

    def poll(self) -> list[Any]:
        """Messages that arrived in full, without blocking; sets `closed` at the end of the stream.

        Raises `BrokenStream` when something else than our frames arrived.
        """
        while True:
            try:
                chunk = self.sock.recv(1 << 18, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.closed = True
                break
            self._buffer += chunk
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > LARGEST_FRAME:
                raise BrokenStream(f"a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            messages.append(self._decode(body))
        return messages

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise BrokenStream(str(error)) from None

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = self.sock.recv(length - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
