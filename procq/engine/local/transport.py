"""Moves frames between the supervisor and one worker (DESIGN 3, 4).

Decides how bytes travel, and counts in the kernel how many tasks have begun; what the bytes mean
is wire.py's, when to send and to read is the engine's.  Per worker a packet socket for tasks,
where what was sent together is read together; a stream for frames down that are too big for a
packet and for everything that comes up, so that one read takes many reports; and the counter.
Nothing is shared between workers.

Rule for the supervisor's side: no call here ever blocks, and whatever the worker does to its
ends shows as `WireError` or as `hung_up`, never as another error.  The worker's side blocks.

Both sides import this module, so it takes the C module `_socket` rather than `socket`, which
costs a worker 5 of its 14 ms.  A system without `SOCK_SEQPACKET` (macOS) needs other
innards for these two classes and no change elsewhere.
"""

import _socket
import _thread
import fcntl
import os
from io import BytesIO
from struct import Struct

from procq.engine.local import wire
from procq.parcel import room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, TypeVar

    from procq.parcel import Buffer

    _Place = TypeVar("_Place", bytearray, memoryview)

#: Bytes of the stream moved at a time.  Large enough that system calls do not count (60 us of
#: copying against 1 us), small enough to stay in the cache between the socket and its place.
_SLICE: "Final" = 256 * 1024
#: Read of the stream at a time while nothing big is on its way, in bytes: far more than what 64
#: tasks ahead report, and a result of 100 KB in one piece.  From 128 KiB on the allocator would
#: ask the kernel for the memory of each read anew (14 us; measured 2026-11 with glibc 2.36).
_READ_MAX: "Final" = 112 * 1024
#: A frame not whole yet is kept, to be joined with what comes, if it is no bigger than this
#: (bytes); a bigger one is read apart, so that its body is copied once.
_KEPT_MAX: "Final" = wire.PIECE_MAX
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

#: Pieces that go with one call; the kernel takes 1024.
_PIECES_MAX: "Final" = 512

#: What is wrong with a message that there is no memory for.
_NO_ROOM: "Final" = "it does not fit into the memory that is left"

#: What a descriptor travels with, which cannot go alone.
_DESCRIPTOR: "Final" = b"d"
_FD = Struct("i")

#: How long a thread of a task waits for another that is sending (seconds).  Not at all would be too
#: little: a sender gives the interpreter up amid its call, so the others would always find it there.
_SPEAK_S: "Final" = 0.05

# A supervisor may live in a program that has put SIGPIPE back to its deadly default.
_SEND_FLAGS: "Final" = getattr(_socket, "MSG_NOSIGNAL", 0)
# For a send that must not wait on the worker's side, where sockets block.
_SEND_NOW: "Final" = _SEND_FLAGS | _socket.MSG_DONTWAIT

# Programs that a task starts get none of them.
_RECEIVE_FLAGS: "Final" = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)

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
        stream_fd: Readable when the worker said something; to be watched for writing while `sending`.
        hung_up: Whether the worker's end of the stream is closed.  Its death is near or has
            happened; if it lives on it is a cheat.
        moves: How often more has come of a message that is not whole (`receiving`).
    """

    __slots__ = (
        "_claims", "_fault", "_incoming", "_outgoing", "_recv", "_rest", "_send_task", "_stream", "_tasks",
        "_worker_stream", "_worker_tasks", "hung_up", "moves", "stream_fd",
    )  # fmt: skip

    def __init__(self) -> None:
        made: list[_socket.socket] = []
        try:
            for kind in (_packet_socket_type(), _socket.SOCK_STREAM):
                made += _pair(kind)
            #: each read takes one of the claims, by whichever side
            self._claims = above_standard_streams(os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except BaseException:
            for one in made:
                one.close()
            raise
        self._tasks, self._worker_tasks, self._stream, self._worker_stream = made
        # Not the worker's ends: the flag belongs to what the worker inherits, and it blocks.
        for ours in (self._tasks, self._stream):
            ours.setblocking(False)  # noqa: FBT003 - positional only
        for end in (self._stream, self._worker_stream):
            end.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _STREAM_BUFFER)
        self.stream_fd = self._stream.fileno()
        # Bound once: looking them up costs 0.1 us a message.
        self._send_task = self._tasks.send
        self._recv = self._stream.recv
        #: What is still to be written to the stream; empty or not is `sending`.
        self._outgoing: list[memoryview] = []
        #: The beginning of a frame that is not whole yet: here, or a big one's in `_incoming`.
        self._rest = b""
        self._incoming: _Incoming | None = None
        #: What was wrong with what came; nothing behind it can be read.
        self._fault: wire.WireError | None = None
        self.hung_up = False
        self.moves = 0

    @property
    def worker_fds(self) -> tuple[int, int, int]:
        """The descriptors to hand to the child: tasks, stream, claims."""
        return self._worker_tasks.fileno(), self._worker_stream.fileno(), self._claims

    def close_worker_ends(self) -> None:
        """Close what only the worker needs, once it has it; else its death would not end the sockets."""
        self._worker_tasks.close()
        self._worker_stream.close()

    @property
    def sending(self) -> bool:
        """Whether a frame is still to be written to the stream: call `flush` when it is writable."""
        return bool(self._outgoing)

    @property
    def receiving(self) -> bool:
        """Whether a message has come in part."""
        return self._incoming is not None or bool(self._rest)

    @property
    def receiving_big(self) -> bool:
        """Whether that is one which takes its time: a report, as nothing else that a worker says is so big."""
        return self._incoming is not None

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
        announcement, *pieces = frame
        if self._outgoing or not self._send_packet(bytes(announcement)):
            return False
        self._outgoing = [memoryview(piece) for piece in pieces if piece]
        self.flush()
        return True

    def send_descriptor(self, fd: int) -> None:
        """Send the worker a descriptor that it waits for; never blocks.

        Raises:
            WireError: It does not wait, or has shut its end.
        """
        if self._outgoing:
            raise wire.WireError("it asked for something while a task was sent to it")
        try:
            self._stream.sendmsg([_DESCRIPTOR], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _FD.pack(fd))], _SEND_FLAGS)
        except OSError as error:
            raise wire.WireError(f"it takes no descriptor: {error}") from error

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

    def receive(self) -> "list[wire.UpMessage]":
        """Read once of what the worker has said; never blocks.

        Returns:
            The messages that are whole now, in their order; there may be none, and none ever
            again (`hung_up`).

        Raises:
            WireError: What came is no message.  Those before it have been returned.
        """
        if self._incoming is not None:
            return self._receive_big(self._incoming)
        if self._fault is not None:
            raise self._fault
        try:
            data = self._recv(_READ_MAX)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.hung_up = True
            return []
        if self._rest:
            data = self._rest + data
            self._rest = b""
        messages: list[wire.UpMessage] = []
        try:
            read = wire.unpack_up(data, messages)
            if read < len(data):
                self._keep(data, read)
        except wire.WireError as error:
            self._fault = error
            if not messages:
                raise
        return messages

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of a frame until the rest has come."""
        self.moves += 1
        sizes = wire.frame_sizes(data, at)
        if sizes is None or wire.length_of(sizes) <= _KEPT_MAX:
            self._rest = data[at:]
        else:
            self._incoming = _Incoming(sizes)
            try:
                self._incoming.take(memoryview(data)[at:])
            except MemoryError as error:
                raise self._spoilt(wire.WireError(_NO_ROOM)) from error

    def _receive_big(self, incoming: "_Incoming") -> "list[wire.UpMessage]":
        """Read more of a big frame, and nothing behind it."""
        for _ in range(_SLICES_PER_CALL):
            try:
                received = incoming.read(self._stream)
            except BlockingIOError:
                return []
            except OSError:
                received = 0
            except MemoryError as error:  # the rest is left where it is: such a worker is of no more use
                raise self._spoilt(wire.WireError(_NO_ROOM)) from error
            if not received:
                self.hung_up = True
                return []
            self.moves += 1
            if not incoming.missing:
                self._incoming = None
                try:
                    return [incoming.message()]
                except wire.WireError as error:
                    raise self._spoilt(error) from None
        return []

    def _spoilt(self, error: wire.WireError) -> wire.WireError:
        """Note that nothing that comes can be read any more, and return why."""
        self._incoming = None
        self._fault = error
        return error

    def close(self) -> None:
        """Close every descriptor; may be called twice."""
        self._outgoing = []
        self._incoming = None
        self.close_worker_ends()
        for end in (self._tasks, self._stream):
            end.close()
        claims, self._claims = self._claims, -1
        if claims >= 0:
            os.close(claims)


class _Growing:
    """Memory that grows with what comes, in place, and is handed out as `bytes` without a copy."""

    __slots__ = ("_file", "missing")

    def __init__(self, size: int) -> None:
        self._file = BytesIO()
        self.missing = size

    def add(self, data: memoryview) -> None:
        """Add what has come; no more than is missing."""
        self._file.write(data)
        self.missing -= len(data)

    def whole(self) -> bytes:
        """Return all of it."""
        return self._file.getvalue()


class _Reserved:
    """Memory of a buffer, which is only reserved where it was not written to yet."""

    __slots__ = ("_buffer", "rest")

    def __init__(self, size: int) -> None:
        self._buffer = self.rest = room(size)

    @property
    def missing(self) -> int:
        """How many bytes are still to come."""
        return len(self.rest)

    def add(self, data: memoryview) -> None:
        """Add what has come; no more than is missing."""
        self.rest[: len(data)] = data
        self.note(len(data))

    def note(self, filled: int) -> None:
        """Take note of what was written into `rest`."""
        self.rest = self.rest[filled:]

    def whole(self) -> memoryview:
        """Return all of it."""
        return self._buffer


class _Incoming:
    """A frame on its way from the worker through the stream.

    It takes memory for what has really come and not for what was announced, so an absurd
    announcement costs nothing.

    Args:
        sizes: The lengths of the head, of the body, and of each buffer, as `wire.frame_sizes` gives them.
    """

    __slots__ = ("_places", "_sizes", "_slice", "missing")

    def __init__(self, sizes: "Sequence[int]") -> None:
        #: bytes still to come, of the whole frame
        self.missing = wire.length_of(sizes)
        head_size, body_size, *buffer_sizes = sizes
        #: those that have begun to come
        self._places: list[_Growing | _Reserved] = [_Growing(head_size)]
        #: of the others
        self._sizes = iter([body_size | wire.IS_BYTES, *buffer_sizes])
        # What grows is read here first: this memory stays in the cache, the frame's own does not.
        self._slice = memoryview(bytearray(min(self.missing, _SLICE)))

    def read(self, stream: _socket.socket) -> int:
        """Read a slice and return how many bytes came; 0 at the end of the stream.

        Raises:
            MemoryError: There is none for it.
        """
        place = self._place()
        if isinstance(place, _Reserved):
            received = stream.recv_into(place.rest[:_SLICE])
            place.note(received)
        else:
            received = stream.recv_into(self._slice, min(place.missing, len(self._slice)))
            place.add(self._slice[:received])
        self.missing -= received
        return received

    def take(self, data: memoryview) -> None:
        """Add what has come; no more than is missing."""
        self.missing -= len(data)
        while data:
            place = self._place()
            taken = data[: place.missing]
            place.add(taken)
            data = data[len(taken) :]

    def _place(self) -> "_Growing | _Reserved":
        """Return what is to be filled next; something is missing."""
        while not (place := self._places[-1]).missing:
            size = next(self._sizes)
            self._places.append(_Growing(wire.unmarked(size)) if wire.is_marked(size) else _Reserved(size))
        return place

    def message(self) -> "wire.UpMessage":
        """Return what it says, once all of it has come.

        Raises:
            WireError: It is no message.
        """
        head, body, *buffers = [place.whole() for place in self._places] + [b"" for _ in self._sizes]
        return wire.unpack_frame(head, body, buffers)  # type: ignore[arg-type]  # the body grows


class WorkerEnd:
    """The worker's side of the same sockets.  Blocks; raises `OSError` when a socket is gone.

    What several threads of a task say at once, and what an exception of a signal handler cuts
    short, must not mix on the stream.  So a frame of one piece is one call of `send`: in the
    kernel that is one buffer, queued whole or not at all, whoever else sends and whatever
    interrupts the wait for room (`test_a_piece_is_sent_whole_or_not_at_all` tries it).  A
    bigger frame takes several; the main thread alone sends such, where no `Terminated` can be
    raised, and holds a lock that keeps other threads from getting between.

    Attributes:
        is_child: Set in a process that a task has forked: it must say nothing here.
        piece_max: So long a frame is one piece, in bytes; negative: nothing can be said any more.
    """

    __slots__ = (
        "_between", "_claims", "_main", "_missing", "_recv_task", "_send", "_sends_big", "_stream", "_tasks",
        "is_child", "piece_max",
    )  # fmt: skip

    def __init__(self, tasks_fd: int, stream_fd: int, claims_fd: int) -> None:
        self._claims = claims_fd
        for fd in (tasks_fd, stream_fd, claims_fd):
            # Programs that a task starts get none of them.
            os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
        self._tasks = _socket.socket(fileno=tasks_fd)
        self._stream = _socket.socket(fileno=stream_fd)
        self._recv_task = self._tasks.recv
        self._send = self._stream.send
        # One buffer in the kernel is also no more than half of the socket's room, less 64 bytes.
        room = self._stream.getsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF)
        self.piece_max = min(wire.PIECE_MAX, room // 2 - 64)
        self._main = _thread.get_ident()
        #: held by the main thread while it sends a big frame, and by any other while it sends at all
        self._between = _thread.allocate_lock()
        #: whether the main thread is amid a big frame, or about to be: it may be a signal handler that speaks
        self._sends_big = False
        #: bytes still to come of a big frame
        self._missing = 0
        self.is_child = False

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
        return self._receive_big(message) if isinstance(message, wire.Bulk) else message

    def _receive_big(self, bulk: wire.Bulk) -> wire.DownMessage:
        """Read the frame that was announced; a task that there is no memory for is skipped and known all the same."""
        head, sizes = wire.split_head(bulk, self._read(bytearray(bulk.head_size)))
        size = self._missing = bulk.body_size + sum(size for several in sizes for size, _ in several)
        try:
            return self._read_rest(bulk, head, sizes)
        except MemoryError:
            pass
        # Only now what was read is let go of, which the error held.
        self._skip()
        return wire.unpack_unread(head, size)

    def _read_rest(self, bulk: wire.Bulk, head: wire.Data, sizes: "list[list[tuple[int, bool]]]") -> wire.DownMessage:
        body = self._read(bytearray(bulk.body_size))
        buffers = [[self._read_buffer(size, as_bytes=as_bytes) for size, as_bytes in several] for several in sizes]
        return wire.unpack_down(head, memoryview(body), buffers)

    def _skip(self) -> None:
        """Read what is missing of a frame, and forget it."""
        place = memoryview(bytearray(min(self._missing, _SLICE)))
        while self._missing:
            self._read(place[: self._missing])

    def fetch(self, key: int) -> int:
        """Ask for the descriptor of shared memory that the running attempt refers to, and wait for it.

        Raises:
            LookupError: This is not the thread in which the attempt began.
            OSError: There is no descriptor to spare.
        """
        if _thread.get_ident() != self._main or self.is_child:
            raise LookupError("shared objects can only be unpickled where the task was started")
        try:
            self.send(wire.pack_wanted(key))
            _, parts, _, _ = self._stream.recvmsg(1, _socket.CMSG_SPACE(_FD.size), _RECEIVE_FLAGS)
        except BaseException:  # noqa: BLE001
            # Of a signal handler: `Terminated` say, or a `TimeoutError`, which is an `OSError`.  The answer would
            # be taken for another some day; and who is asked to stop while it gets its arguments has nothing to
            # tidy up.
            os._exit(wire.EXIT_ASKED)
        if not parts:
            raise OSError("no descriptor came; there may be too many open")
        fd: int = _FD.unpack(parts[0][2])[0]
        return fd

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

        For the main thread, and while no `Terminated` can be raised.

        Raises:
            OSError: The descriptors are closed, or the supervisor is gone.
        """
        if isinstance(frame, bytes) and len(frame) <= self.piece_max:
            self._send(frame, _SEND_FLAGS)
        else:
            self._send_big([frame] if isinstance(frame, bytes) else frame)

    def _send_big(self, pieces: "wire.Pieces") -> None:
        # Before the lock, so that those who speak all the time cannot keep it from us.
        self._sends_big = True
        with self._between:
            try:
                sent = self._stream.sendmsg(pieces[:_PIECES_MAX], (), _SEND_FLAGS)
                for piece in pieces:
                    if sent < len(piece):
                        self._stream.sendall(memoryview(piece)[sent:], _SEND_FLAGS)
                    sent = max(0, sent - len(piece))
            except BaseException:
                self.piece_max = -1  # nobody must add to half a frame
                raise
        self._sends_big = False

    def send_if_room(self, frame: bytes) -> bool:
        """Send a message of one piece that may as well be lost; for any thread, at any moment.

        Never raises `OSError`.  Blocks for `_SPEAK_S` at most, and only while other threads speak too.

        Returns:
            Whether it was sent.  False: there is no room now, a big message is on its way, the
            frame is too big, this is a forked child, or the supervisor is gone.
        """
        return self._send_piece(frame, wait=False)

    def send_piece(self, frame: bytes) -> bool:
        """Send a message of one piece, however long it takes; for any thread, at any moment.

        If a signal handler raises meanwhile, it was sent whole or not at all.  Never raises `OSError`.

        Returns:
            Whether it was sent.  False: this is a signal handler amid a big message, the frame is
            too big, this is a forked child, or the supervisor is gone.
        """
        return self._send_piece(frame, wait=True)

    def _send_piece(self, frame: bytes, *, wait: bool) -> bool:
        by_main = _thread.get_ident() == self._main
        if len(frame) > self.piece_max or self.is_child or (self._sends_big and (by_main or not wait)):
            return False
        flags = _SEND_FLAGS if wait else _SEND_NOW
        try:
            if by_main:
                # Without the lock: an exception of a signal handler could leave it locked for good.
                self._send(frame, flags)
            elif self._between.acquire(True, -1 if wait else _SPEAK_S):  # noqa: FBT003 - positional only
                try:
                    if self.piece_max < 0:
                        return False
                    self._send(frame, flags)
                finally:
                    self._between.release()
            else:
                return False
        except OSError:
            return False
        return True

    def let_go(self) -> None:
        """Give up the sockets but leave them open: the supervisor takes their end for our death."""
        for end in (self._tasks, self._stream):
            end.detach()

    def _read_buffer(self, size: int, *, as_bytes: bool) -> "Buffer":
        if not as_bytes:
            return self._read(room(size))
        data = self._stream.recv(size, _socket.MSG_WAITALL)
        self._missing -= len(data)
        while len(data) < size:  # a signal came, or it is more than the kernel moves at a time, 2 GiB
            more = self._stream.recv(size - len(data), _socket.MSG_WAITALL)
            if not more:
                raise ConnectionResetError("the supervisor closed the stream")
            self._missing -= len(more)
            data += more
        return data

    def _read(self, place: "_Place") -> "_Place":
        """Fill a place from the stream, however long it takes."""
        view = memoryview(place)
        while view:
            received = self._stream.recv_into(view, len(view), _socket.MSG_WAITALL)
            if not received:
                raise ConnectionResetError("the supervisor closed the stream")
            self._missing -= received
            view = view[received:]
        return place


def _packet_socket_type() -> int:
    try:
        return _socket.SOCK_SEQPACKET
    except AttributeError:
        raise NotImplementedError("procq's local engine needs AF_UNIX sockets of type SOCK_SEQPACKET") from None


def _pair(kind: int) -> "Sequence[_socket.socket]":
    """Make a pair of sockets on descriptors from 3 up; close-on-exec, as Python makes them."""
    ends = _socket.socketpair(_socket.AF_UNIX, kind)
    return [_socket.socket(fileno=above_standard_streams(end.detach())) for end in ends]
