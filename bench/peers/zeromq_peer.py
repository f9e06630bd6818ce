"""ZeroMQ through pyzmq: REQ and REP for calls one after the other, DEALER and ROUTER for many; no tasks."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from typing import Any, ClassVar

from peers.cpp import program
from peers.peer import NoSuchThing, Peer, right
from peers.work import Actor

# Messages that nobody has read wait in memory without a limit; with one, a thousand in flight would block.
NO_LIMIT = 0


def serve(folder: str, number: int) -> None:
    """The loop of a worker, which answers on the socket that has a message."""
    import zmq

    context = zmq.Context()
    rep, router = context.socket(zmq.REP), context.socket(zmq.ROUTER)
    router.set_hwm(NO_LIMIT)
    rep.bind(f"ipc://{folder}/rep{number}")
    router.bind(f"ipc://{folder}/router{number}")
    poller = zmq.Poller()
    poller.register(rep, zmq.POLLIN)
    poller.register(router, zmq.POLLIN)
    actor = Actor()

    def answer(message: list[Any], head: list[bytes], socket: Any) -> bool:
        method = pickle.loads(message[0].buffer)
        if method == "small_value":
            socket.send_multipart([*head, pickle.dumps(actor.small_value())])
        elif method == "echo":
            socket.send_multipart([*head, actor.echo(message[1].buffer)], copy=False)
        elif method == "checksum":
            import numpy as np  # imported late: a worker that never sees an array does not need it

            total = actor.checksum(np.frombuffer(message[1].buffer, np.float64))
            socket.send_multipart([*head, pickle.dumps(total)])
        return bool(method != "stop")

    going = True
    while going:
        ready = dict(poller.poll())
        if rep in ready:
            going = answer(rep.recv_multipart(copy=False), [], rep)
        while router in ready and router.poll(0):
            sender, *message = router.recv_multipart(copy=False)
            answer(message, [sender.bytes], router)
    context.destroy(linger=0)


class ZeroMq(Peer):
    title = "ZeroMQ"
    colour = "#9c755f"
    place = 6
    distribution = "pyzmq"
    requirements = ("pyzmq",)
    module = "zmq"
    how: ClassVar[dict[str, str]] = {
        "actors": "a loop of one's own: REQ and REP, DEALER and ROUTER; pickled, arrays as they are",
        "broadcast": "DEALER to each ROUTER, without a copy in Python",
        "cpp": "PAIR sockets; for tasks, PUSH and PULL",
    }
    first = """
import multiprocessing, zmq
def work(address):
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(address)
    while (x := socket.recv_pyobj()) is not None:
        socket.send_pyobj(x * x)
import tempfile
with tempfile.TemporaryDirectory() as folder:
    child = multiprocessing.Process(target=work, args=(f"ipc://{folder}/socket",))
    child.start()
    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(f"ipc://{folder}/socket")
    socket.send_pyobj(7)
    print(socket.recv_pyobj(), flush=True)
    input()
    socket.send_pyobj(None)
    child.join()
"""

    def cpp_command(self, work: str, processes: int) -> list[str]:
        if work.startswith("all_reduce"):
            raise NoSuchThing("no such thing")
        return [program("peer_zeromq_cpp"), work]

    def start_actors(self, workers: int) -> None:
        import zmq  # imported once for all workers; contexts are made after the fork, which they would not survive

        context = multiprocessing.get_context("fork")
        self.folder = tempfile.TemporaryDirectory()
        self.children = [context.Process(target=serve, args=(self.folder.name, n)) for n in range(workers)]
        for child in self.children:
            child.start()
        self.context = zmq.Context()
        self.context.max_sockets = 2 * workers + 100
        self.reqs = [self._connected(zmq.REQ, f"rep{n}") for n in range(workers)]
        self.dealers = [self._connected(zmq.DEALER, f"router{n}") for n in range(workers)]

    def _connected(self, kind: Any, name: str) -> Any:
        socket = self.context.socket(kind)
        socket.set_hwm(NO_LIMIT)
        socket.connect(f"ipc://{self.folder.name}/{name}")
        return socket

    def calls(self, count: int) -> int:
        socket, received = self.reqs[0], []
        for _ in range(count):
            socket.send(pickle.dumps("small_value"))
            received.append(pickle.loads(socket.recv()))
        return right(received)

    def calls_in_flight(self, count: int) -> int:
        socket = self.dealers[0]
        for _ in range(count):
            socket.send(pickle.dumps("small_value"))
        return right([pickle.loads(socket.recv()) for _ in range(count)])

    def call_each(self) -> int:
        for socket in self.reqs:
            socket.send(pickle.dumps("small_value"))
        return right([pickle.loads(socket.recv()) for socket in self.reqs])

    def echo(self, array: Any) -> Any:
        import numpy as np

        socket = self.reqs[0]
        socket.send_multipart([pickle.dumps("echo"), array], copy=False)
        return np.frombuffer(socket.recv(copy=False).buffer, array.dtype)

    def broadcast(self, array: Any) -> list[float]:
        for socket in self.dealers:
            socket.send_multipart([pickle.dumps("checksum"), array], copy=False)
        return [pickle.loads(socket.recv()) for socket in self.dealers]

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "reqs"):
            for socket in self.reqs:
                socket.send(pickle.dumps("stop"))
            for child in self.children:
                child.join()
            self.context.destroy(linger=0)
            self.folder.cleanup()


PEER = ZeroMq
