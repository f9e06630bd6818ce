"""A notebook's kernel, and what its cells show."""

from __future__ import annotations

import os
import queue
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager
from waiting import PATIENCE_S


@dataclass
class Shown:
    """What a cell shows until the kernel is idle again."""

    stdout: str = ""
    stderr: str = ""
    error: str = ""  # the name of the exception
    message: str = ""
    html: str = ""
    result: str = ""
    messages: list[str] = field(default_factory=list)  # of its streams, one by one

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


def environment_in(folder: Path) -> dict[str, str]:
    """Whatever a kernel writes is in the folder."""
    folders = {"IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder), "JUPYTER_CONFIG_DIR": str(folder)}
    environment = {**os.environ, **folders}
    environment.pop("PYTEST_CURRENT_TEST", None)  # else the kernel captures less than it does elsewhere
    return environment


class Kernel:
    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(transport="ipc", ip=str(folder / "kernel"))
        self._manager.connection_file = str(folder / "connection.json")
        assert self._manager.kernel_spec is not None
        self._manager.kernel_spec.argv[0] = sys.executable
        self._environment = environment_in(folder)
        self._folder = folder
        self._manager.start_kernel(env=self._environment, cwd=str(folder))
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.pid)  # type: ignore[union-attr]

    def run(self, code: str, within_s: float = PATIENCE_S) -> Shown:
        """Runs a cell to its end; it must not fail."""
        shown = self.show(self.begin(code), within_s)
        assert not shown.error, f"{shown.error}: {shown.message}"
        return shown

    def fail(self, code: str) -> Shown:
        shown = self.show(self.begin(code))
        assert shown.error
        return shown

    def begin(self, code: str) -> str:
        return str(self._client.execute(code))

    def show(self, cell: str, within_s: float = PATIENCE_S) -> Shown:
        shown = Shown()
        deadline = time.monotonic() + within_s
        while not self._take(cell, shown, deadline):
            pass
        return shown

    def show_until(self, cell: str, text: str) -> None:
        """Waits until a running cell has printed this."""
        shown = Shown()
        deadline = time.monotonic() + PATIENCE_S
        while text not in shown.stdout:
            assert not self._take(cell, shown, deadline), f"the cell ended: {shown}"

    def show_late(self, cell: str, text: str) -> None:
        """Waits until a cell shows this, ended or not."""
        shown = Shown()
        deadline = time.monotonic() + PATIENCE_S
        while text not in shown.stdout:
            self._take(cell, shown, deadline)
            assert not shown.error, shown

    def _take(self, cell: str, shown: Shown, deadline: float) -> bool:
        """One message of the kernel. True if the cell has ended. What comes after that is not the cell's."""
        try:
            message: Any = self._client.get_iopub_msg(timeout=1)
        except queue.Empty:
            assert self._manager.is_alive(), f"the kernel died: {shown}"
            assert time.monotonic() < deadline, f"the cell did not end: {shown}"
            return False
        if message["parent_header"].get("msg_id") != cell:
            return False
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            setattr(shown, content["name"], getattr(shown, content["name"]) + content["text"])
            shown.messages.append(content["text"])
        elif kind == "error":
            shown.error, shown.message = content["ename"], content["evalue"]
        elif kind in ("execute_result", "display_data"):
            shown.html = content["data"].get("text/html", "")
            shown.result = content["data"]["text/plain"]
        return bool(kind == "status" and content["execution_state"] == "idle")

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._client.stop_channels()
        self._manager.restart_kernel(env=self._environment, cwd=str(self._folder))
        self._connect()

    def close(self, now: bool = True) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=now)
        self._manager.cleanup_resources()
