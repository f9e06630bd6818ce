"""A client for sealed connections, from docs/wire_format.md and PyPI's cryptography: a second implementation."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import socket
import struct
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from json_client import VERSION, JsonClient

RECORD_BYTES_MAX = 65536
RECORDS_PER_KEY = 1 << 20
LAST = 0x80000000


class Cut(EOFError):
    """The stream ended without its last record."""


class Direction:
    def __init__(self, key: bytes, records_per_key: int = RECORDS_PER_KEY) -> None:
        self.key, self.records_per_key = key, records_per_key
        self.cipher = AESGCM(key)
        self.number = 0

    @classmethod
    def of(cls, session: bytes, label: bytes) -> Direction:
        return cls(HKDFExpand(SHA256(), 32, label).derive(session))

    def nonce(self) -> bytes:
        """The nonce of the next record. The cipher has its key then."""
        if self.number > 0 and self.number % self.records_per_key == 0:
            self.key = HKDFExpand(SHA256(), 32, b"MiniRay next key").derive(self.key)
            self.cipher = AESGCM(self.key)
        self.number += 1
        return struct.pack("<Q", self.number - 1) + bytes(4)

    def seal(self, text: bytes, announced: int) -> bytes:
        head = struct.pack("<I", announced)
        nonce = self.nonce()
        return head + self.cipher.encrypt(nonce, text, head)

    def open(self, sealed: bytes, head: bytes) -> bytes:
        nonce = self.nonce()
        return self.cipher.decrypt(nonce, sealed, head)


class SealedStream(io.RawIOBase):
    """Reads and writes records. The JSON client treats it as it does a socket's stream."""

    def __init__(self, raw: BinaryIO, sending: Direction, receiving: Direction) -> None:
        self.raw, self.sending, self.receiving = raw, sending, receiving
        self.text = b""
        self.ended = False

    def write(self, text: bytes) -> int:  # type: ignore[override]
        for at in range(0, len(text), RECORD_BYTES_MAX):
            piece = text[at : at + RECORD_BYTES_MAX]
            self.raw.write(self.sending.seal(piece, len(piece)))
        return len(text)

    def end(self) -> None:
        self.raw.write(self.sending.seal(b"", LAST))
        self.raw.flush()

    def flush(self) -> None:
        self.raw.flush()

    def read(self, size: int) -> bytes:  # type: ignore[override]
        while len(self.text) < size and not self.ended:
            self.fill()
        text, self.text = self.text[:size], self.text[size:]
        return text

    def fill(self) -> None:
        """Open the next record."""
        head = self.raw.read(4)
        if len(head) < 4:
            raise Cut
        (announced,) = struct.unpack("<I", head)
        sealed = self.raw.read(announced % LAST + 16)
        try:
            self.text += self.receiving.open(sealed, head)
        except InvalidTag:
            raise ConnectionError("a record is not the peer's next one") from None
        self.ended = announced == LAST


def directions(key: bytes, common: bytes, said: bytes) -> tuple[Direction, Direction]:
    """From the client, and from the server. `said` is the whole handshake."""
    session = hmac.digest(key, common, hashlib.sha256)  # HKDF-Extract
    transcript = hashlib.sha256(said).digest()
    return (
        Direction.of(session, b"MiniRay from client" + transcript),
        Direction.of(session, b"MiniRay from server" + transcript),
    )


class SealedClient(JsonClient):
    def __init__(self, connection: socket.socket, wish: int = 2) -> None:
        super().__init__(connection)
        self.wish = wish

    def say(self, step: str, data: bytes) -> None:
        """Send what is right at a step. (An adversary sends something else.)"""
        self.stream.write(data)
        self.stream.flush()

    def prove(self, key: bytes, version: int = VERSION) -> None:
        raw = self.stream
        hello = b"MiniRay?" + struct.pack("<II", version, self.wish) + os.urandom(32)
        self.say("hello", hello)
        head = self._read(16)
        _, _, refusal = struct.unpack("<8sII", head)
        if refusal != 0:
            raise ConnectionRefusedError(f"refusal {refusal}")
        (sealed,) = struct.unpack("<I", (word := self._read(4)))
        assert sealed == 1
        nonce, theirs, proof = self._read(32), self._read(32), self._read(32)
        said = hello + head + word + nonce + theirs
        if not hmac.compare_digest(proof, hmac.digest(key, b"MiniRay server" + said, hashlib.sha256)):
            raise ConnectionRefusedError("the server has another key")
        own = X25519PrivateKey.generate()
        said += proof + own.public_key().public_bytes_raw()
        own_proof = hmac.digest(key, b"MiniRay client" + said, hashlib.sha256)
        self.say("proof", own.public_key().public_bytes_raw() + own_proof)
        common = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        from_client, from_server = directions(key, common, said + own_proof)
        self.stream = SealedStream(raw, from_client, from_server)  # type: ignore[assignment]


class SealedSocket:
    """The server's end, with the calls of a socket. Takes the connection over."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self.connection = connection
        self.raw = connection.makefile("rwb")
        hello = self._read(48)
        own = X25519PrivateKey.generate()
        said = b"MiniRay!" + struct.pack("<III", VERSION, 0, 1) + os.urandom(32) + own.public_key().public_bytes_raw()
        proof = hmac.digest(key, b"MiniRay server" + hello + said, hashlib.sha256)
        self.raw.write(said + proof)
        self.raw.flush()
        theirs, their_proof = self._read(32), self._read(32)
        said = hello + said + proof + theirs
        assert their_proof == hmac.digest(key, b"MiniRay client" + said, hashlib.sha256)
        common = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        from_client, from_server = directions(key, common, said + their_proof)
        self.stream = SealedStream(self.raw, from_server, from_client)

    def _read(self, size: int) -> bytes:
        data = self.raw.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def sendall(self, data: bytes) -> None:
        self.stream.write(data)
        self.stream.flush()

    def recv(self, size: int) -> bytes:
        """At most one record. Empty after the last one."""
        if not self.stream.text and not self.stream.ended:
            self.stream.fill()
        data, self.stream.text = self.stream.text[:size], self.stream.text[size:]
        return data

    def shutdown(self, how: int) -> None:
        self.connection.shutdown(how)

    def close(self) -> None:
        for each in (self.raw, self.connection):
            try:
                each.close()
            except OSError:  # what it had to write, nobody reads
                pass
