"""Real ssh hosts to be made ill, for tests of the doctor: firewalls, wrong names, small rooms, and then the report."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import Hosts
from testbed import Host, Testbed

DOCTOR = (sys.executable, "-m", "miniray", "doctor")
LISTEN = """
import socket, sys
listeners = [socket.create_server(("", int(port))) for port in sys.argv[2:]]
print("listening", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Report:
    """What `miniray doctor --json` said."""

    exit_code: int
    value: dict[str, Any]

    def found(self, *checks: str) -> list[tuple[str, str, str]]:
        """Severity, node and check of every finding, or of those of these checks."""
        findings = self.value["findings"]
        return [(f["severity"], f["node"], f["check"]) for f in findings if not checks or f["check"] in checks]

    def of(self, node: str, check: str) -> tuple[str, str]:
        """What is wrong, and the cure; there is one such finding."""
        [one] = [(f["what"], f["cure"]) for f in self.value["findings"] if (f["node"], f["check"]) == (node, check)]
        return one

    @property
    def checked(self) -> list[str]:
        return [node["node"] for node in self.value["nodes"]]


class Clinic(Hosts):
    """A testbed whose hosts know each other by name, so that a doctor finds nothing until something is planted."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        super().__init__(testbed, folder)
        self._sshd = {name: sshd_of(host) for name, host in testbed.hosts.items()}

    def introduce(self) -> None:
        for name in self.testbed.hosts:
            lines = (f"{host.address} {host.name}\n" for host in self.testbed.hosts.values())
            self.write_hosts_file(name, "127.0.0.1 localhost\n" + "".join(lines))
            self.inside(name, "mount", "--bind", str(self._hosts_file(name)), "/etc/hosts")

    def inside(self, name: str, *words: str, input: str | None = None) -> str:
        """What a command prints in the network and the file system of a host."""
        enter = ("nsenter", f"--target={self._sshd[name]}", "--net", "--mount", "--uts")
        return subprocess.run([*enter, *words], input=input, capture_output=True, text=True, check=True).stdout

    def address(self, name: str) -> str:
        return self.testbed.hosts[name].address

    # --- Plants -------------------------------------------------------------------------------------------------------
    @contextmanager
    def firewall(self, name: str, *rules: str) -> Iterator[None]:
        """Rules for what arrives at the host."""
        chain = ["add table inet fire", "add chain inet fire arriving { type filter hook input priority 0; }"]
        lines = [*chain, *(f"add rule inet fire arriving {rule}" for rule in rules)]
        self.inside(name, "nft", "-f", "-", input="\n".join(lines) + "\n")
        try:
            yield
        finally:
            self.inside(name, "nft", "delete", "table", "inet", "fire")

    @contextmanager
    def names(self, name: str, means: Mapping[str, str]) -> Iterator[None]:
        """The addresses that names mean on the host, in the place of the right ones."""
        before = self._hosts_file(name).read_text()
        kept = [line for line in before.splitlines() if line.split()[1] not in means]
        lines = [*kept, *(f"{address} {who}" for who, address in means.items())]
        self.write_hosts_file(name, "".join(line + "\n" for line in lines))
        try:
            yield
        finally:
            self.write_hosts_file(name, before)

    @contextmanager
    def extra_address(self, name: str, address: str) -> Iterator[None]:
        self.inside(name, "ip", "address", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
        try:
            yield
        finally:
            self.inside(name, "ip", "address", "delete", address, "dev", "eth0")

    @contextmanager
    def bridge(self, name: str, device: str, address: str) -> Iterator[None]:
        """A network interface that leads nowhere."""
        self.inside(name, "ip", "link", "add", device, "type", "bridge")
        try:
            self.inside(name, "ip", "address", "add", address, "dev", device)
            self.inside(name, "ip", "link", "set", device, "up")
            yield
        finally:
            self.inside(name, "ip", "link", "delete", device)

    @contextmanager
    def little_shared_memory(self, name: str, size: str) -> Iterator[None]:
        self.inside(name, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm")
        try:
            yield
        finally:
            self.inside(name, "umount", "/dev/shm")

    @contextmanager
    def few_open_files(self, name: str, number: int) -> Iterator[None]:
        """For whoever logs in there. The hard limit stays, or nobody could take this back."""
        before = resource.prlimit(self._sshd[name], resource.RLIMIT_NOFILE)
        resource.prlimit(self._sshd[name], resource.RLIMIT_NOFILE, (number, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self._sshd[name], resource.RLIMIT_NOFILE, before)

    @contextmanager
    def listener(self, name: str, *ports: int) -> Iterator[int]:
        """A process on the host that has these ports; its pid."""
        words = ["exec", "/usr/bin/python3", "-c", f"'{LISTEN}'", "a-listener", *map(str, ports)]
        child = self.testbed.popen("ssh", name, " ".join(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"listening\n"
            [process] = self.testbed.processes(name)
            yield process.pid
        finally:
            child.communicate()

    def python_on(self, name: str, folder: Path, command: str) -> Path:
        """An interpreter for all hosts, which is the usual one everywhere but here."""
        folder.mkdir(exist_ok=True)
        python = folder / f"python on {name}"  # with spaces, which a shell on the way must not see
        usual = f'exec {sys.executable} "$@"'
        python.write_text(f'#!/bin/sh\nif [ "$(hostname)" = {name} ]; then\n  {command} "$@"\nfi\n{usual}\n')
        python.chmod(0o755)
        return python

    # --- The doctor ---------------------------------------------------------------------------------------------------
    def text(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and the report for people."""
        ended = self.testbed.run(*DOCTOR, *arguments)
        assert ended.stderr == ""
        return ended.returncode, ended.stdout

    def report(self, *arguments: str) -> Report:
        ended = self.testbed.run(*DOCTOR, *arguments, "--json")
        assert ended.stderr == "", ended.stderr
        value = json.loads(ended.stdout)
        assert ended.returncode == (0 if value["healthy"] else 1)
        problems = [finding for finding in value["findings"] if finding["severity"] == "problem"]
        assert value["healthy"] == (not problems)
        assert value["findings"][: len(problems)] == problems  # they come first
        return Report(ended.returncode, value)

    def listens_on(self, name: str, port: int) -> bool:
        tables = [Path(f"/proc/{self._sshd[name]}/net/{table}").read_text() for table in ("tcp", "tcp6")]
        return any(re.search(rf"^ *\d+: \w+:{port:04X} \w+:0000 0A ", table, re.MULTILINE) for table in tables)

    def _hosts_file(self, name: str) -> Path:
        return self.testbed.hosts[name].folder / "hosts"

    def write_hosts_file(self, name: str, text: str) -> None:
        self._hosts_file(name).write_text(text)  # in place: what is mounted there is this very file


def sshd_of(host: Host) -> int:
    """The process that listens for ssh: its namespaces are the host's."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(host.sshd_config) in (entry / "cmdline").read_text(errors="replace"):
                return int(entry.name)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    raise RuntimeError(f"{host.name} has no sshd")
