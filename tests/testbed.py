"""Several real ssh hosts on this machine, for tests: a network namespace and an sshd for each.

    with Testbed(folder) as testbed:
        testbed.run("ssh", "mr-a", "hostname")

The coordinator's processes run in the hub, a namespace with a bridge to every host. A host has its own network,
hostname, /tmp and home folder, and shares the rest of the file system. When the testbed ends, so does every process
in it.
"""

# Without "from __future__ import annotations": its dataclasses need a module that is listed in sys.modules, and a test
# may load this file by its path.

import math
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HOSTS_MAX = 32
HUB = "hub"
HUB_ADDRESS = "10.77.0.1"
ADDRESS_FORMAT = "10.77.0.{}"
FIRST_ADDRESS = 11
START_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.01

NAMESPACES = Path("/run/netns")
SSH = "/usr/bin/ssh"
SSHD = "/usr/sbin/sshd"
TOOLS = ("ip", "nft", "nsenter", "unshare", "mount", "ssh-keygen", SSH, SSHD, "/bin/bash")

# In the command line of what makes a login slow, so that it counts as part of sshd.
LOGIN_DELAY_MARK = "sshd-login-delay"


@dataclass(frozen=True)
class Process:
    """A process that lives in one of the testbed's network namespaces."""

    pid: int
    command_line: str


@dataclass(frozen=True)
class Host:
    """One ssh host, by the name that `ssh` takes."""

    name: str
    address: str
    namespace: str
    link: str  # the hub's end of its cable
    folder: Path  # all that is this host's own; every other host's is out of its sight if it is below /tmp

    @property
    def home(self) -> Path:
        """HOME, the working folder of a login, and where .bashrc is read from."""
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        """What the host sees as /tmp."""
        return self.folder / "tmp"

    @property
    def sshd_config(self) -> Path:
        return self.folder / "sshd_config"


class Testbed:
    """Hosts that exist while the context is open; its files are in `folder`, which exists, and are removed at the end.

    hidden         folders, by host name, that look empty there
    login_delay_s  how much longer each login takes on every host; a session of a shared connection is no login
    """

    __test__ = False  # or pytest collects it

    def __init__(
        self,
        folder: Path,
        names: Sequence[str] = ("mr-a", "mr-b", "mr-c"),
        *,
        hidden: Mapping[str, Sequence[Path]] | None = None,
        login_delay_s: float = 0.0,
    ) -> None:
        if not 1 <= len(names) <= HOSTS_MAX or len(set(names)) != len(names) or HUB in names:
            raise ValueError(f"expected 1 to {HOSTS_MAX} different names, none of them {HUB!r}, not {list(names)}")
        self.hidden = {name: [Path(path) for path in paths] for name, paths in (hidden or {}).items()}
        for name, paths in self.hidden.items():
            if name not in names or not all(path.is_absolute() and path.is_dir() for path in paths):
                raise ValueError(f"expected absolute folders to hide on one of {list(names)}, not {name!r}: {paths}")
            if any(folder.resolve().is_relative_to(path.resolve()) for path in paths if path != Path("/tmp")):
                raise ValueError(f"{name} needs the testbed's own {folder}, which is in one of the hidden {paths}")
        if not 0.0 <= login_delay_s < math.inf:
            raise ValueError(f"expected a login delay in seconds, not {login_delay_s}")
        self.login_delay_s = login_delay_s
        folder = folder.resolve()
        self.folder = folder / HUB
        self.home = self.folder / "home"
        self.ssh_config = self.folder / "ssh_config"
        suffix = f"{os.getpid()}-{secrets.token_hex(2)}"  # two test runs on one machine do not meet
        self.namespace = f"{HUB}-{suffix}"
        self.hosts = {
            name: Host(
                name,
                ADDRESS_FORMAT.format(FIRST_ADDRESS + index),
                f"{name}-{suffix}",
                f"host{index}",
                folder / name,
            )
            for index, name in enumerate(names)
        }
        self._children: list[subprocess.Popen[Any]] = []

    @staticmethod
    def available() -> str | None:
        """Why there can be no testbed on this machine, or None."""
        if os.geteuid() != 0:
            return "it needs root, for network namespaces"
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            return f"it needs {', '.join(missing)}: apt-get install openssh-server iproute2 nftables"
        probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
        return f"it cannot make namespaces: {probe.stderr.strip()}" if probe.returncode != 0 else None

    def __enter__(self) -> "Testbed":
        reason = self.available()
        if reason is not None:
            raise RuntimeError(f"no testbed here: {reason}")
        for folder in self._folders():
            if folder.exists():
                raise FileExistsError(f"the testbed would make {folder} and remove it, but it is there already")
        try:
            self._write_files()
            self._connect_hosts()
            self._start_hosts()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    # --- Commands of the coordinator ----------------------------------------------------------------------------------
    def command(self, *words: str | Path, env: Mapping[str, str] | None = None) -> list[str]:
        """The argument vector that runs `words` in the hub, where `ssh` knows the hosts; its pid is that of `words`."""
        environment = {"HOME": str(self.home), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **(env or {})}
        settings = [f"{key}={value}" for key, value in environment.items()]
        return ["nsenter", f"--net={NAMESPACES / self.namespace}", "env", *settings, *map(str, words)]

    def run(
        self,
        *words: str | Path,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `words` in the hub to their end; their exit status is for the caller to check."""
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        return subprocess.run(
            self.command(*words, env=env), timeout=timeout, capture_output=True, text=True, cwd=cwd, **source
        )

    def popen(self, *words: str | Path, env: Mapping[str, str] | None = None, **kwargs: Any) -> "subprocess.Popen[Any]":
        """Starts `words` in the hub; the end of the testbed kills and reaps what still runs."""
        child = subprocess.Popen(self.command(*words, env=env), **kwargs)
        self._children.append(child)
        return child

    # --- Faults -------------------------------------------------------------------------------------------------------
    def cut(self, name: str) -> None:
        """Pulls the host's cable: packets vanish, and nobody is told."""
        self._set_link(self.hosts[name], "down")

    def heal(self, name: str) -> None:
        """Plugs the cable back in."""
        self._set_link(self.hosts[name], "up")

    def lose(self, name: str, percent: int) -> None:
        """Drops this share of the packets to the host, and of those from it; 0 ends that."""
        if not 0 <= percent <= 100:
            raise ValueError(f"expected 0 to 100 percent, not {percent}")
        host = self.hosts[name]
        for namespace, device in ((host.namespace, "eth0"), (self.namespace, host.link)):
            # Each drops what arrives. A filter for what leaves would tell the sender, which no network does.
            table = f"netdev loss_{device}"
            rules = [f"add table {table}", f"delete table {table}"]  # the former lets the latter always succeed
            if percent > 0:
                rules += [
                    f"add table {table}",
                    f'add chain {table} arriving {{ type filter hook ingress device "{device}" priority 0; }}',
                    f"add rule {table} arriving numgen random mod 100 <= {percent - 1} drop",
                ]
            _check("nsenter", f"--net={NAMESPACES / namespace}", "nft", "-f", "-", input="\n".join(rules))

    # --- Processes ----------------------------------------------------------------------------------------------------
    def processes(self, name: str, *, include_ssh: bool = False) -> list[Process]:
        """What runs on the host, or in the hub for "hub"; sshd's sessions only on request, its listener never."""
        if name == HUB:
            return list(_processes_in({self.namespace}))
        host = self.hosts[name]
        return [
            process
            for process in _processes_in({host.namespace})
            if not (_is_ssh(process) and (str(host.sshd_config) in process.command_line or not include_ssh))
        ]

    def survivors(self) -> dict[str, list[Process]]:
        """`processes` of every host and of the hub, where there are any."""
        found = {name: self.processes(name) for name in (HUB, *self.hosts)}
        return {name: processes for name, processes in found.items() if processes}

    # --- Set-up -------------------------------------------------------------------------------------------------------
    def _write_files(self) -> None:
        self.folder.mkdir()
        (self.folder / "bin").mkdir()
        self.home.mkdir()
        (self.folder / "empty").mkdir()
        user_key, host_key = self.folder / "user_key", self.folder / "host_key"
        for key in (user_key, host_key):
            _check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", str(key))

        # ssh reads the configuration in the home of the passwd file, whatever HOME says, so it needs to be told.
        wrapper = self.folder / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {shlex.quote(str(self.ssh_config))} "$@"\n')
        wrapper.chmod(0o755)
        known_hosts = self.folder / "known_hosts"
        public_host_key = host_key.with_suffix(".pub").read_text()
        known_hosts.write_text("".join(f"{host.address} {public_host_key}" for host in self.hosts.values()))
        common = f"""
            Host *
              User root
              IdentityFile "{user_key}"
              IdentitiesOnly yes
              IdentityAgent none
              UserKnownHostsFile "{known_hosts}"
              GlobalKnownHostsFile /dev/null
              StrictHostKeyChecking yes
              LogLevel ERROR
        """
        aliases = [f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts.values()]
        self.ssh_config.write_text("".join(aliases) + common)

        for host in self.hosts.values():
            self._write_files_of(host, user_key.with_suffix(".pub").read_text().strip(), host_key)

    def _write_files_of(self, host: Host, authorized_key: str, host_key: Path) -> None:
        host.folder.mkdir()
        host.home.mkdir()
        host.tmp.mkdir()
        host.tmp.chmod(0o1777)
        shutil.copy(host_key, host.folder / "host_key")
        (host.folder / "authorized_keys").write_text(authorized_key + "\n")

        # With a home of its own in the passwd file, the host agrees with itself about "~", HOME and the working folder.
        users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
        for user in users:
            if user[0] == "root":
                user[5:] = [str(host.home), "/bin/bash"]
        (host.folder / "passwd").write_text("".join(":".join(user) + "\n" for user in users))

        if self.login_delay_s > 0.0:
            # A slow login is one whose account takes long to check. Where sshd looks for keys would be a worse place:
            # it rounds up how long that took, by up to a factor of two.
            delay = f"account required pam_exec.so /bin/bash -c [exec -a {LOGIN_DELAY_MARK} sleep {self.login_delay_s}]"
            (host.folder / "pam").write_text(f"auth required pam_deny.so\n{delay}\nsession required pam_permit.so\n")
        (host.folder / "sshd.log").touch()
        host.sshd_config.write_text(
            f"""
ListenAddress {host.address}
HostKey "{host.folder}/host_key"
PidFile none
AuthorizedKeysFile "{host.folder}/authorized_keys"
StrictModes no
UsePAM {"yes" if self.login_delay_s > 0.0 else "no"}
PermitRootLogin prohibit-password
MaxStartups 100:30:200
MaxSessions 100
Subsystem sftp internal-sftp
"""
        )

    def _connect_hosts(self) -> None:
        hosts = self.hosts.values()
        _ip(["netns add " + namespace for namespace in (self.namespace, *(host.namespace for host in hosts))])
        cables = [
            f"link add {host.link} type veth peer name eth0 netns {host.namespace}\nlink set {host.link} master br0 up"
            for host in hosts
        ]
        bridge = ["link add br0 type bridge", f"addr add {HUB_ADDRESS}/24 dev br0", "link set br0 up"]
        _ip(["link set lo up", *bridge, *cables], self.namespace)
        for host in hosts:
            _ip(["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"], host.namespace)

    def _start_hosts(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        for host in self.hosts.values():
            isolate = ["unshare", "--uts", "--mount", "--propagation", "private", "/bin/sh", "-ec", self._boot(host)]
            _check("nsenter", f"--net={NAMESPACES / host.namespace}", *isolate)
        doors = " ".join(f"/dev/tcp/{host.address}/22" for host in self.hosts.values())
        knock = f"for door in {doors}; do until (exec 3<>$door) 2>/dev/null; do sleep {POLL_S}; done; done"
        try:
            self.run("/bin/bash", "-c", knock, timeout=START_TIMEOUT_S).check_returncode()
        except subprocess.TimeoutExpired as error:
            logs = [f"{host.name}: {(host.folder / 'sshd.log').read_text()}" for host in self.hosts.values()]
            raise RuntimeError("an sshd does not answer\n" + "\n".join(logs)) from error

    def _boot(self, host: Host) -> str:
        """The shell script that makes its mount namespace the host's, and leaves an sshd behind."""
        empty, folder = shlex.quote(str(self.folder / "empty")), shlex.quote(str(host.folder))
        lines = [f"hostname {shlex.quote(host.name)}", f"mount --bind {folder}/passwd /etc/passwd"]
        if self.login_delay_s > 0.0:
            lines.append(f"mount --bind {folder}/pam /etc/pam.d/sshd")
        lines += [f"mount --bind {empty} {shlex.quote(str(path))}" for path in self.hidden.get(host.name, [])]
        # The private /tmp would cover this very folder, and Python itself and what was built for tests if they are
        # there: all stay where they are, with what is hidden in them.
        built = Path(__file__).resolve().parents[1] / "build/release/tests"
        for kept in (host.folder, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), built):
            if kept.is_relative_to("/tmp"):
                inner = shlex.quote(str(host.tmp / kept.relative_to("/tmp")))
                lines += [f"mkdir -p {inner}", f"mount --rbind {shlex.quote(str(kept))} {inner}"]
        lines += [f"mount --rbind {folder}/tmp /tmp", "cd /"]
        return "\n".join([*lines, f"exec {SSHD} -f {folder}/sshd_config -E {folder}/sshd.log </dev/null"])

    def _folders(self) -> list[Path]:
        return [self.folder, *(host.folder for host in self.hosts.values())]

    def _set_link(self, host: Host, state: str) -> None:
        _check("ip", "-n", self.namespace, "link", "set", host.link, state)

    # --- The end ------------------------------------------------------------------------------------------------------
    def _remove(self) -> None:
        """Works from any state that set-up may have left; mounts end with the last process that sees them."""
        namespaces = {self.namespace, *(host.namespace for host in self.hosts.values())}
        try:
            _kill_all_in(namespaces)
            for child in self._children:
                child.wait(KILL_TIMEOUT_S)
        finally:
            _ip([f"netns delete {namespace}" for namespace in namespaces if (NAMESPACES / namespace).exists()])
            for folder in self._folders():
                shutil.rmtree(folder, ignore_errors=True)  # set-up may not have come this far


def _check(*words: str, input: str = "") -> None:
    """Runs a command that has to succeed."""
    ended = subprocess.run(words, input=input, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)} failed with {ended.returncode}: {ended.stdout.strip()}")


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Several `ip` commands in one process."""
    _check("ip", *(("-n", namespace) if namespace else ()), "-batch", "-", input="\n".join(lines) + "\n")


def _processes_in(namespaces: set[str]) -> Iterator[Process]:
    """Those alive now; a zombie is in no namespace."""
    wanted = {_identity(NAMESPACES / namespace) for namespace in namespaces} - {None}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _identity(entry / "ns/net") in wanted:
            try:
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            yield Process(int(entry.name), b" ".join(words).decode(errors="replace"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # it has ended, or it is one that not even root may look into, so not started here
    return status.st_dev, status.st_ino


def _is_ssh(process: Process) -> bool:
    return process.command_line.startswith(("sshd", SSHD)) or LOGIN_DELAY_MARK in process.command_line


def _kill_all_in(namespaces: set[str]) -> None:
    """Until none is left, since one may start another meanwhile."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while found := list(_processes_in(namespaces)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"these do not die: {found}")
        for process in found:
            _kill_if_in(namespaces, process.pid)
        time.sleep(POLL_S)


def _kill_if_in(namespaces: set[str], pid: int) -> None:
    """Looks again with the process pinned, since a pid may have passed to another in the meantime."""
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _identity(Path(f"/proc/{pid}/ns/net")) in {_identity(NAMESPACES / name) for name in namespaces} - {None}:
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was quicker
    finally:
        os.close(pinned)
