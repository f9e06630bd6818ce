"""Compares sealed connections with plain TCP, Python's ssl and an ssh tunnel, and writes bench/results/sealed.md.

    python bench/sealed_bench.py [--rounds 7] [--quick]

Everything goes over the same loopback interface. The sides take turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from python_bench import per_operation, serve
from run import ROOT, core, machine

SMALL_BYTES, LARGE_BYTES = 64, 8 << 20
HAS_INSTRUCTIONS = {"aes", "pclmulqdq", "sse4_2"} <= set(Path("/proc/cpuinfo").read_text().split())
Echo = Callable[[int, int], float]  # of so many bytes, so many times: nanoseconds each


def receive(connection: Any, room: memoryview) -> bool:
    filled = 0
    while filled < len(room):
        size = connection.recv_into(room[filled:])
        if size == 0:
            return False
        filled += size
    return True


def serve_echo(listener: socket.socket, size: int, wrap: Callable[[socket.socket], Any]) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = wrap(connection)
    room = memoryview(bytearray(size))
    try:
        while receive(connection, room):
            connection.sendall(room)
    except OSError:
        pass


@contextmanager
def echo_server(size: int, wrap: Callable[[socket.socket], Any] = lambda plain: plain) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            serve_echo(listener, size, wrap)
            os._exit(0)
        port = listener.getsockname()[1]
    try:
        yield port
    finally:
        os.waitpid(child, 0)


def echo_through(port: int, size: int, count: int, wrap: Callable[[socket.socket], Any] = lambda plain: plain) -> float:
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with wrap(plain) as connection:
        message, room = bytes(size), memoryview(bytearray(size))

        def once() -> None:
            connection.sendall(message)
            receive(connection, room)

        return per_operation(count, once)


# --- Python's ssl -----------------------------------------------------------------------------------------------------
def certificate(folder: Path) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


def ssl_echo(pem: Path) -> Echo:
    def run(size: int, count: int) -> float:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(pem)
        client = ssl.create_default_context(cafile=str(pem))
        with echo_server(size, lambda plain: server.wrap_socket(plain, server_side=True)) as port:
            return echo_through(port, size, count, lambda plain: client.wrap_socket(plain, server_hostname="localhost"))

    return run


# --- ssh --------------------------------------------------------------------------------------------------------------
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def sshd(folder: Path) -> Iterator[list[str]]:
    """A server on the loopback interface. Yields the ssh command for it."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nUsePAM no\nPermitRootLogin prohibit-password\n"
    )
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        options = ["StrictHostKeyChecking=no", f"UserKnownHostsFile={folder}/known", "LogLevel=ERROR"]
        yield [
            "ssh", "-F", "/dev/null", "-i", f"{folder}/user", "-p", str(port),
            *[word for option in options for word in ("-o", option)],
        ]  # fmt: skip
    finally:
        server.terminate()
        server.wait()


def ssh_echo(command: list[str]) -> Echo:
    def run(size: int, count: int) -> float:
        with echo_server(size) as port:
            here = free_port()
            # The command ends with the connection that it forwards, because the sleep does.
            forward = ["-L", f"127.0.0.1:{here}:127.0.0.1:{port}"]
            tunnel = subprocess.Popen([*command, "-N", *forward, "127.0.0.1"])
            try:
                deadline = time.monotonic() + 10
                while True:
                    try:
                        return echo_through(here, size, count)
                    except ConnectionRefusedError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.02)
            finally:
                tunnel.terminate()
                tunnel.wait()

    return run


# --- Ours, from Python ------------------------------------------------------------------------------------------------
def ours(size: int, count: int) -> float:
    import numpy

    from miniray import RemoteWorker, Worker

    message = numpy.zeros(size, dtype=numpy.uint8) if size > SMALL_BYTES else {"payload": "x" * (SMALL_BYTES // 2)}
    with Worker(serve) as server:
        with RemoteWorker("127.0.0.1", server.recv(), encrypt=True, spin_us=0) as worker:

            def once() -> None:
                worker.send(message)
                worker.recv()

            took = per_operation(count, once)
        server.kill()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="check that everything runs, and write nothing")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    small, large, connects = (50, 3, 3) if options.quick else (5000, 40, 100)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tls, ssh = ssl_echo(certificate(folder)), ssh_echo(stack.enter_context(sshd(folder)))
        sides: dict[str, Callable[[], float]] = {
            "raw small": core("tcp/raw", small),
            "plain small": core("tcp/sleeping", small),
            "sealed small": core("sealed/sleeping", small),
            "raw large": core("large_tcp/raw", large),
            "plain large": core("large_tcp/sleeping", large),
            "sealed large": core("sealed/large_sleeping", large),
            "plain connect": core("tcp/connect", connects),
            "sealed connect": core("sealed/connect", connects),
            "python small": lambda: ours(SMALL_BYTES, small),
            "ssl small": lambda: tls(SMALL_BYTES, small),
            "ssh small": lambda: ssh(SMALL_BYTES, small),
            "python large": lambda: ours(LARGE_BYTES, large),
            "ssl large": lambda: tls(LARGE_BYTES, large),
            "ssh large": lambda: ssh(LARGE_BYTES, large),
        }
        # The kinds of cipher that other CPUs and builds would use (src/channel/cipher.hpp)
        for kind in ("narrow", "common") if HAS_INSTRUCTIONS else ():
            sides[f"{kind} large"] = core("sealed/large_sleeping", large, MINIRAY_TEST_CIPHER=kind)
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                taken[name].append(side())
    median = {name: statistics.median(times) for name, times in taken.items()}

    def row(what: str, ours_: str, theirs: str, yardstick: str, budget: float) -> str:
        ratio = median[ours_] / median[theirs]
        spread = f"{min(taken[ours_]) / median[theirs]:.2f} to {max(taken[ours_]) / median[theirs]:.2f}"
        return (
            f"| {what} | {median[ours_] / 1000:.1f} us | {yardstick}: {median[theirs] / 1000:.1f} us "
            f"| {ratio:.3g}x ({spread}) | {budget:.3g}x | {'yes' if ratio <= budget else '**no**'} |"
        )

    more_ms = (median["sealed connect"] - median["plain connect"]) / 1e6

    def row_of_rate(what: str, side: str) -> str:
        rate = 2 * LARGE_BYTES / median[side]
        return f"| {what} | {rate:.2f} GB/s a direction | | | 1.2 GB/s | {'yes' if rate >= 1.2 else '**no**'} |"

    of_other_kinds = []
    if HAS_INSTRUCTIONS:
        without_vaes = "8 MiB echo, C++, as on a CPU without VAES and AVX-512"
        of_other_kinds = [
            row(without_vaes, "narrow large", "plain large", "the same, not sealed", 1 / 0.6),
            row_of_rate(without_vaes, "narrow large"),
            row_of_rate("8 MiB echo, C++, as in a build without IPsec-MB", "common large"),
        ]
    lines = [
        "# Sealed connections compared with plain ones, ssl and ssh",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} with {machine()}. The figures are medians of {rounds} rounds, in "
        "which the sides take turns; the ratios of the best and the worst round are in brackets. Everything goes over "
        "the loopback interface of one machine, nothing spins, and an echo of 8 MiB moves them twice. `make bench` "
        "makes this page.",
        "",
        "| what | MiniRay, sealed | compared with | ratio | budget | met |",
        "|---|---|---|---|---|---|",
        row("small round trip, C++", "sealed small", "plain small", "the same, not sealed", 1.15),
        row("small round trip, C++", "sealed small", "raw small", "raw TCP", 1.35),
        row("8 MiB echo, C++", "sealed large", "plain large", "the same, not sealed", 1 / 0.6),
        row("8 MiB echo, C++", "sealed large", "raw large", "raw TCP", 1 / 0.6),
        row_of_rate("8 MiB echo, C++", "sealed large"),
        *of_other_kinds,
        f"| a connection, C++ | {median['sealed connect'] / 1e6:.2f} ms | the same, not sealed: "
        f"{median['plain connect'] / 1e6:.2f} ms | {more_ms:.2f} ms more | 1 ms more "
        f"| {'yes' if more_ms <= 1 else '**no**'} |",
        row("small round trip, Python", "python small", "ssl small", "Python's ssl", 1),
        row("small round trip, Python", "python small", "ssh small", "sockets through ssh", 1),
        row("8 MiB echo, Python", "python large", "ssl large", "Python's ssl", 1),
        row("8 MiB echo, Python", "python large", "ssh large", "sockets through ssh", 1),
    ]
    print("\n".join(lines))
    if not options.quick:
        (ROOT / "bench/results/sealed.md").write_text("\n".join(lines) + "\n")
        print("Written to bench/results/sealed.md")


if __name__ == "__main__":
    sys.exit(main())
