"""Moves frames between the supervisor and one worker (DESIGN 3, 4).

Decides how bytes travel, and counts in the kernel how many tasks have begun; what the bytes mean
is wire.py's, when to send and to read is the engine's.  Per worker two one-way packet sockets
(tasks down, results up), where one message is one packet, one stream beside them for frames too
big for a packet, and the counter.  Nothing is shared between workers.

Rule for the supervisor's side: no call here ever blocks, and whatever the worker does to its
ends shows as `WireError` or as `hung_up`, never as another error.  The worker's side blocks.

Both sides import this module, so it takes the C module `_socket` rather than `socket`, which
costs a worker 5 of its 14 ms.  A system without `SOCK_SEQPACKET` (macOS) needs other
innards for these two classes and no change elsewhere.
"""

import _socket
import fcntl
import os
from io import BytesIO

from procq.engine.local import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

#: Bytes of the stream moved at a time.  Large enough that system calls do not count (60 us of
#: copying against 1 us), small enough to stay in the cache between the socket and its place.
_SLICE: "Final" = 256 * 1024
#: Slices moved in one call, so that one big transfer does not hold up other workers for long
#: (contract I1): 1 MiB takes about 0.3 ms.
_SLICES_PER_CALL: "Final" = 4
#: Asked for on both ends of the stream: more in flight means fewer wake-ups.  The kernel cuts it
#: down to what it allows, which is no error.
_STREAM_BUFFER: "Final" = 1024 * 1024

#: Nobody sends a worker so many tasks ahead: more claims were written by a cheat, who can write
#: 2**64 of them, and the supervisor must not read until they are gone.
_CLAIMS_MAX: "Final" = 4096
#: What one read of a counter in the kernel gives.
_CLAIM_SIZE: "Final" = 8

# A supervisor may live in a program that has put SIGPIPE back to its deadly default.
_SEND_FLAGS: "Final" = getattr(_socket, "MSG_NOSIGNAL", 0)
_PEEK: "Final" = _socket.MSG_PEEK
# For a send that must not wait on the worker's side, where sockets block.
_SEND_NOW: "Final" = _SEND_FLAGS | _socket.MSG_DONTWAIT

#: Descriptors below this are standard streams to every program, even when they are closed here.
_FIRST_OWN_FD: "Final" = 3


def above_standard_streams(fd: int) -> int:
    """Return a close-on-exec descriptor from 3 up; `fd` itself, or a duplicate and `fd` is closed.

    Where standard streams are closed, a new descriptor may take their numbers, and what a
    library prints would then go into a pipe of ours.
    """
    if fd >= _FIRST_OWN_FD:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_FD)
    finally:
        os.close(fd)


class Channel:
    """The supervisor's side of the sockets to one worker.

    Besides the sockets there is a counter in the kernel, the claims: one for each task that was
    sent.  The worker takes one before it begins a task, and the supervisor takes back what is left
    of them when it wants tasks back, so the kernel says exactly how many have begun.

    Not thread-safe.

    Attributes:
        result_fd: Readable when the worker said something.
        stream_fd: To be watched for writing while `sending`, for reading while `receiving`.
        hung_up: Whether the worker's end of a socket is closed.  Its death is near or has
            happened; if it lives on it is a cheat.
    """

    __slots__ = (
        "_claims", "_incoming", "_outgoing", "_recv_result", "_results", "_send_task", "_stream", "_tasks",
        "_worker_results", "_worker_stream", "_worker_tasks", "hung_up", "result_fd", "stream_fd",
    )  # fmt: skip

    def __init__(self) -> None:
        made: list[_socket.socket] = []
        try:
            for kind in (_packet_socket_type(), _packet_socket_type(), _socket.SOCK_STREAM):
                made += _pair(kind)
            #: each read takes one of the claims, by whichever side
            self._claims = above_standard_streams(os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except BaseException:
            for one in made:
                one.close()
            raise
        self._tasks, self._worker_tasks = made[0], made[1]
        self._results, self._worker_results = made[2], made[3]
        self._stream, self._worker_stream = made[4], made[5]
        # Not the worker's ends: the flag belongs to what the worker inherits, and it blocks.
        for ours in (self._tasks, self._results, self._stream):
            ours.setblocking(False)  # noqa: FBT003 - positional only
        for end in (self._stream, self._worker_stream):
            end.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _STREAM_BUFFER)
        self.result_fd = self._results.fileno()
        self.stream_fd = self._stream.fileno()
        # Bound once: looking them up costs 0.1 us a message.
        self._send_task = self._tasks.send
        self._recv_result = self._results.recv
        #: What is still to be written to the stream; empty or not is `sending`.
        self._outgoing: list[memoryview] = []
        #: The announced frame that is being read from the stream; None or not is `receiving`.
        self._incoming: _Incoming | None = None
        self.hung_up = False

    @property
    def worker_fds(self) -> tuple[int, int, int, int]:
        """The descriptors to hand to the child: tasks, results, stream, claims."""
        return (
            self._worker_tasks.fileno(), self._worker_results.fileno(), self._worker_stream.fileno(), self._claims,
        )  # fmt: skip

    def close_worker_ends(self) -> None:
        """Close what only the worker needs, once it has it; else its death would not end the sockets."""
        self._worker_tasks.close()
        self._worker_results.close()
        self._worker_stream.close()

    @property
    def sending(self) -> bool:
        """Whether a frame is still to be written to the stream: call `flush` when it is writable."""
        return bool(self._outgoing)

    @property
    def receiving(self) -> bool:
        """Whether an announced frame is still being read: call `receive` when the stream is readable."""
        return self._incoming is not None

    @property
    def missing(self) -> int:
        """How many bytes of the announced frame have not come yet."""
        return 0 if self._incoming is None else self._incoming.missing

    def send(self, frame: wire.Frame) -> bool:
        """Send a message to the worker; never blocks.

        A frame too big for a packet is announced and then written by `flush`; it is meant for
        a worker that is about to read it.

        Returns:
            Whether it was sent.  False: the socket is full, or a frame is still being written
            to the stream, and nothing was sent.

        Raises:
            WireError: The worker has shut its end.
        """
        if isinstance(frame, bytes):
            return self._send_packet(frame)
        if self._outgoing or not self._send_packet(wire.announce(frame)):
            return False
        self._outgoing = [memoryview(piece) for piece in frame if piece]
        self.flush()
        return True

    def send_tasks(self, frames: "list[wire.Frame]") -> bool:
        """Send tasks, with a claim for each; never blocks.

        Args:
            frames: Packets that together are no more than `wire.PACKET_MAX`, or one frame too big
                for a packet.

        Returns:
            Whether they were sent, as `send`; if not, there are no claims for them either.

        Raises:
            WireError: The worker has shut its end, or spoilt the claims; `revoke` says what it has not begun,
                these among them.
        """
        # The claims first: a worker that finds a task and no claim takes it for taken back.
        try:
            os.eventfd_write(self._claims, len(frames))
        except (OSError, ValueError) as error:  # closed; or full, which a cheat made it: no number of tasks does
            raise wire.WireError(f"there can be no more claims: {error}") from error
        sent = self.send(frames[0] if len(frames) == 1 else b"".join(frames))  # type: ignore[arg-type]  # several are packets
        if not sent:
            # A worker takes no more claims than it has tasks, so that these are still there.
            self._take_claims(len(frames))
        return sent

    def _send_packet(self, packet: bytes) -> bool:
        try:
            self._send_task(packet, _SEND_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            raise wire.WireError(f"the worker shut the pipe for tasks: {error}") from error
        return True

    def flush(self) -> bool:
        """Write more of a big frame; never blocks.

        Returns:
            Whether nothing is left to write; also when the worker closed its end (`hung_up`).
        """
        for _ in range(_SLICES_PER_CALL):
            if not self._outgoing:
                return True
            piece = self._outgoing[0]
            try:
                sent = self._stream.send(piece[:_SLICE], _SEND_FLAGS)
            except BlockingIOError:
                return False
            except OSError:
                self.hung_up = True
                self._outgoing = []
                return True
            if sent == len(piece):
                del self._outgoing[0]
            else:
                self._outgoing[0] = piece[sent:]
        return not self._outgoing

    def revoke(self) -> int:
        """Take back the claims of all tasks that the worker has not begun; never blocks.

        The kernel arbitrates: a claim is taken either here or by the worker, who begins tasks in
        the order in which they were sent.  So what is taken back are the last tasks sent.  A
        worker that lives must then be told with `drop`, and be sent no task before it answers.

        Returns:
            How many tasks were taken back; more than were sent if the worker is a cheat.
        """
        return self._take_claims(_CLAIMS_MAX)

    def drop(self) -> bool:
        """Tell the worker to forget the tasks that were taken back; never blocks.

        Returns:
            Whether it was sent, which it is even when the socket is full of those tasks.

        Raises:
            WireError: The worker has shut its end.
        """
        if self._send_packet(wire.DROP_FRAME):
            return True
        # The worker may be long at its task, and read nothing meanwhile.  The kernel doubles what is set.
        size = self._tasks.getsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF)
        self._tasks.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, size)
        try:
            return self._send_packet(wire.DROP_FRAME)
        finally:
            self._tasks.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, size // 2)

    def _take_claims(self, most: int) -> int:
        taken = 0
        try:
            while taken < most:
                os.read(self._claims, _CLAIM_SIZE)
                taken += 1
        except OSError:  # none is left, or the channel is closed
            pass
        return taken

    def receive(self) -> wire.UpMessage | None:
        """Read the next message of the worker; never blocks.

        While an announced frame is being read this is `receive_bulk`, so messages keep their order.

        Returns:
            The message, or None if there is no whole one now, or none any more (`hung_up`).

        Raises:
            WireError: What came is no message.
        """
        if self._incoming is not None:
            bulk = self.receive_bulk()
            if bulk is None:
                self._notice_end()
            return bulk
        try:
            packet = self._recv_result(wire.PACKET_MAX)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if not packet:
            self.hung_up = True
            return None
        message = wire.unpack_up(packet)
        if isinstance(message, wire.Bulk):
            self._incoming = _Incoming(message.head_size, message.body_size)
            return self.receive_bulk()
        return message

    def _notice_end(self) -> None:
        """Notice that the worker has closed its results amid an announced frame; else nothing would tell."""
        try:
            self.hung_up = self.hung_up or not self._recv_result(1, _PEEK)
        except BlockingIOError:
            pass
        except OSError:
            self.hung_up = True

    def receive_bulk(self) -> wire.UpMessage | None:
        """Read more of an announced frame; never blocks.

        Returns:
            The message once it is whole, else None.

        Raises:
            WireError: What came is no message.
        """
        incoming = self._incoming
        if incoming is None:
            return None
        for _ in range(_SLICES_PER_CALL):
            if not incoming.missing:
                self._incoming = None
                return wire.unpack_up(*incoming.frame())
            try:
                received = incoming.read(self._stream)
            except BlockingIOError:
                return None
            except OSError:
                received = 0
            except MemoryError as error:  # the rest is left where it is: such a worker is of no more use
                self._incoming = None
                raise wire.WireError("it does not fit into the memory that is left") from error
            if not received:
                self.hung_up = True
                return None
        if not incoming.missing:
            self._incoming = None
            return wire.unpack_up(*incoming.frame())
        return None

    def close(self) -> None:
        """Close every descriptor; may be called twice."""
        self._outgoing = []
        self._incoming = None
        self.close_worker_ends()
        for end in (self._tasks, self._results, self._stream):
            end.close()
        claims, self._claims = self._claims, -1
        if claims >= 0:
            os.close(claims)


class _Incoming:
    """A frame on its way from the worker through the stream.

    It grows with what has really come and not with what was announced, so an absurd
    announcement costs nothing.
    """

    __slots__ = ("_body", "_head", "_head_missing", "_slice", "missing")

    def __init__(self, head_size: int, body_size: int) -> None:
        self._head = bytearray()
        # Grown in place by the allocator, and handed out as `bytes` without a copy.
        self._body = BytesIO()
        self._head_missing = head_size
        #: Bytes still to come, of the whole frame.
        self.missing = head_size + body_size
        # Read here first: this memory stays in the cache, the frame's own does not.
        self._slice = memoryview(bytearray(min(self.missing, _SLICE)))

    def read(self, stream: _socket.socket) -> int:
        """Read a slice and return how many bytes came; 0 at the end of the stream."""
        part = self._head_missing or self.missing
        received = stream.recv_into(self._slice, min(part, len(self._slice)))
        if self._head_missing:
            self._head += self._slice[:received]
            self._head_missing -= received
        else:
            self._body.write(self._slice[:received])
        self.missing -= received
        return received

    def frame(self) -> tuple[bytearray, bytes]:
        """Return the head and the body, once all has come."""
        return self._head, self._body.getvalue()


class WorkerEnd:
    """The worker's side of the same sockets.  Blocks; raises `OSError` when a socket is gone."""

    __slots__ = ("_claims", "_recv_task", "_results", "_send_result", "_stream", "_tasks")

    def __init__(self, tasks_fd: int, results_fd: int, stream_fd: int, claims_fd: int) -> None:
        self._claims = claims_fd
        for fd in (tasks_fd, results_fd, stream_fd, claims_fd):
            # Programs that a task starts get none of them.
            os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
        self._tasks = _socket.socket(fileno=tasks_fd)
        self._results = _socket.socket(fileno=results_fd)
        self._stream = _socket.socket(fileno=stream_fd)
        self._recv_task = self._tasks.recv
        self._send_result = self._results.send

    def receive(self) -> wire.DownMessage:
        """Wait for the next message; the end of the socket is a `Leave`.

        Raises:
            OSError: The descriptors are closed.
            WireError: What came is no message.
        """
        packet = self._recv_task(wire.PACKET_MAX)
        if not packet:
            return wire.Leave()
        message = wire.unpack_down(packet)
        if isinstance(message, wire.Bulk):
            head = self._read(message.head_size)
            return wire.unpack_down(head, memoryview(self._read(message.body_size)))
        return message

    def claim(self) -> bool:
        """Claim the next task: False if it was taken back, and with it all that came before the DROP.

        Raises:
            OSError: The descriptor is closed, or another's.
        """
        try:
            # Not `eventfd_read`, which tells by an old `errno` that it got too little.
            claimed = os.read(self._claims, _CLAIM_SIZE)
        except BlockingIOError:
            return False
        if len(claimed) != _CLAIM_SIZE:
            raise OSError("the claims are no counter any more")
        return True

    def send(self, frame: wire.Frame) -> None:
        """Send a message, however long it takes.

        Raises:
            OSError: The descriptors are closed, or the supervisor is gone.
        """
        if isinstance(frame, bytes):
            self._send_result(frame, _SEND_FLAGS)
            return
        self._send_result(wire.announce(frame), _SEND_FLAGS)
        for piece in frame:
            self._stream.sendall(piece, _SEND_FLAGS)

    def send_if_room(self, packet: bytes) -> None:
        """Send a packet that may as well be lost; never blocks, never raises `OSError`."""
        try:  # noqa: SIM105 - contextlib is an import more for every worker
            self._send_result(packet, _SEND_NOW)
        except OSError:
            pass

    def let_go(self) -> None:
        """Give up the sockets but leave them open: the supervisor takes their end for our death."""
        for end in (self._tasks, self._results, self._stream):
            end.detach()

    def _read(self, size: int) -> bytearray:
        """Read so much of the stream, however long it takes."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._stream.recv_into(view, len(view), _socket.MSG_WAITALL)
            if not received:
                raise ConnectionResetError("the supervisor closed the stream")
            view = view[received:]
        return data


def _packet_socket_type() -> int:
    try:
        return _socket.SOCK_SEQPACKET
    except AttributeError:
        raise NotImplementedError("procq's local engine needs AF_UNIX sockets of type SOCK_SEQPACKET") from None


def _pair(kind: int) -> "Sequence[_socket.socket]":
    """Make a pair of sockets on descriptors from 3 up; close-on-exec, as Python makes them."""
    ends = _socket.socketpair(_socket.AF_UNIX, kind)
    return [_socket.socket(fileno=above_standard_streams(end.detach())) for end in ends]
