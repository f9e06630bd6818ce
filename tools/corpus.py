"""Packs the inputs of fuzzers into tests/corpus, one file for each fuzzer, and unpacks them for libFuzzer.

    tools/corpus.py unpack FOLDER     writes FOLDER/<fuzzer>/<number>, one file for each input
    tools/corpus.py merge BUILD       lets the fuzzers of a build folder choose, from tests/corpus and from what they
                                      have found, inputs that cover as much; packs the smallest ones, up to BYTES_MAX

tests/replay.cpp describes the format.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "tests/corpus"
BYTES_MAX = 28_000  # of the inputs of one fuzzer: all of them together stay below 300 KB
SUFFIX = ".inputs"


def read(packed: bytes) -> list[bytes]:
    inputs = []
    while packed:
        (size,) = struct.unpack_from("<I", packed)
        inputs.append(packed[4 : 4 + size])
        packed = packed[4 + size :]
    return inputs


def unpack(folder: Path) -> None:
    for file in sorted(CORPUS.glob("*" + SUFFIX)):
        to = folder / file.name.removesuffix(SUFFIX)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for number, content in enumerate(read(file.read_bytes())):
            (to / str(number)).write_bytes(content)


def merge(build: Path) -> None:
    unpack(build / "seeds")
    merged = build / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    for fuzzer in sorted((build / "fuzzers").glob("*_fuzz")):
        folders = [folder / fuzzer.name for folder in (merged, build / "seeds", build / "corpus")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([fuzzer, "-merge=1", *folders], check=True, capture_output=True)
    pack(merged)


def pack(folder: Path) -> None:
    CORPUS.mkdir(exist_ok=True)
    for inputs in sorted(path for path in folder.iterdir() if path.is_dir()):
        packed, left_out = b"", 0
        contents = {file.read_bytes() for file in inputs.iterdir()}
        for content in sorted(contents, key=lambda each: (len(each), each)):
            entry = struct.pack("<I", len(content)) + content
            if len(packed) + len(entry) > BYTES_MAX:
                left_out += 1
            else:
                packed += entry
        (CORPUS / (inputs.name + SUFFIX)).write_bytes(packed)
        print(f"{inputs.name}: {len(contents) - left_out} inputs, {len(packed)} bytes, {left_out} larger ones left out")


if __name__ == "__main__":
    {"merge": merge, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]))
