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
LAST = 0x80000000


class Cut(EOFError):
    """The stream ended without its last record."""


class Direction:
    def __init__(self, session: bytes, label: bytes) -> None:
        self.key = HKDFExpand(SHA256(), 32, label).derive(session)
        self.cipher = AESGCM(self.key)
        self.number = 0

    def nonce(self) -> bytes:
        self.number += 1
        return struct.pack("<Q", self.number - 1) + bytes(4)


class SealedStream(io.RawIOBase):
    """Reads and writes records. The JSON client treats it as it does a socket's stream."""

    def __init__(self, raw: BinaryIO, sending: Direction, receiving: Direction) -> None:
        self.raw, self.sending, self.receiving = raw, sending, receiving
        self.text = b""
        self.ended = False

    def write(self, text: bytes) -> int:  # type: ignore[override]
        for at in range(0, len(text), RECORD_BYTES_MAX):
            piece = text[at : at + RECORD_BYTES_MAX]
            self.raw.write(self.record(len(piece), piece))
        return len(text)

    def record(self, size: int, text: bytes) -> bytes:
        head = struct.pack("<I", size)
        return head + self.sending.cipher.encrypt(self.sending.nonce(), text, head)

    def end(self) -> None:
        self.raw.write(self.record(LAST, b""))
        self.raw.flush()

    def flush(self) -> None:
        self.raw.flush()

    def read(self, size: int) -> bytes:  # type: ignore[override]
        while len(self.text) < size and not self.ended:
            head = self.raw.read(4)
            if len(head) < 4:
                raise Cut
            (announced,) = struct.unpack("<I", head)
            sealed = self.raw.read(announced % LAST + 16)
            try:
                self.text += self.receiving.cipher.decrypt(self.receiving.nonce(), sealed, head)
            except InvalidTag:
                raise ConnectionError("a record is not the peer's next one") from None
            self.ended = announced == LAST
        text, self.text = self.text[:size], self.text[size:]
        return text


class SealedClient(JsonClient):
    def __init__(self, connection: socket.socket, wish: int = 2) -> None:
        super().__init__(connection)
        self.wish = wish

    def prove(self, key: bytes, version: int = VERSION) -> None:
        raw = self.stream
        hello = b"MiniRay?" + struct.pack("<II", version, self.wish) + os.urandom(32)
        raw.write(hello)
        raw.flush()
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
        raw.write(own.public_key().public_bytes_raw() + own_proof)
        raw.flush()
        common = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        session = hmac.digest(key, common, hashlib.sha256)  # HKDF-Extract
        transcript = hashlib.sha256(said + own_proof).digest()
        self.stream = SealedStream(  # type: ignore[assignment]
            raw,
            Direction(session, b"MiniRay from client" + transcript),
            Direction(session, b"MiniRay from server" + transcript),
        )
