"""Frames arrive whole and in order, whatever their size, and nothing blocks on the supervisor's side."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.support.frames import as_bytes, as_object, in_one, pack_result, the_task, the_tasks
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture

from procq.engine.local import transport, wire
from procq.engine.local.transport import Channel, WorkerEnd, above_standard_streams
from procq.inside import Terminated
from procq.parcel import BESIDE_BYTES, Parcel

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZES = [
    0, 1, wire.PIECE_MAX - 56, wire.PIECE_MAX - 55, wire.PACKET_MAX - 200, wire.PACKET_MAX, wire.PACKET_MAX + 1,
    transport._READ_MAX - 56, transport._READ_MAX - 55, 1_000_000, 10_000_000,
]  # fmt: skip
PATIENCE_S = 20.0


class Pair:
    """Both sides in one process: the worker's on duplicates, as a child has them."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.fds = [os.dup(fd) for fd in self.channel.worker_fds]
        self.end = WorkerEnd(*self.fds)
        self.channel.close_worker_ends()
        #: read and not looked at yet
        self.inbox: deque[wire.UpMessage] = deque()

    def receive(self) -> wire.OtherMessage:
        """Wait for the next message up; a success comes as a `Report` too."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.inbox:
            self.inbox += self.channel.receive()
            if not self.inbox:
                assert not self.channel.hung_up
                self.wait(deadline)
        return as_object(self.inbox.popleft())

    def flush(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.channel.flush():
            self.wait(deadline)

    def wait(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.channel.stream_fd, select.POLLIN | (select.POLLOUT if self.channel.sending else 0))
        assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000)

    def close(self) -> None:
        self.channel.close()
        self.close_worker()

    def close_worker(self) -> None:
        self.end.let_go()
        for fd in self.fds:
            try:
                os.close(fd)
            except OSError:
                continue


@pytest.fixture
def pair(no_leaks: None) -> Iterator[Pair]:  # noqa: ARG001, F811
    made = Pair()
    yield made
    made.close()


def pack(seq: int, call: bytes = b"call") -> wire.Frame:
    return wire.pack_task(seq, 1, 1, None, "id", call)


def seqs(messages: list[wire.UpMessage]) -> list[int]:
    """Return the numbers of the successes among messages."""
    return [message[0] for message in messages if isinstance(message, tuple)]


def drained(channel: Channel) -> bytes:
    """Return all bytes that are in the stream up."""
    received = b""
    while select.select([channel.stream_fd], [], [], 0)[0]:
        received += channel._recv(1_000_000)
    return received


def pattern(size: int) -> bytes:
    """Bytes that show a slice in the wrong place."""
    return (b"".join(number.to_bytes(4, "little") for number in range(size // 4 + 1)))[:size]


# --- whole and in order ---


@pytest.mark.parametrize("size", SIZES)
def test_a_task_of_any_size_arrives(pair: Pair, size: int) -> None:
    call = pattern(size)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pair.end.receive)
        assert pair.channel.send(pack(1, call))
        pair.flush()
        task = the_task(received.result(PATIENCE_S))

    assert task.call == call
    assert not pair.channel.sending


@pytest.mark.parametrize("size", SIZES)
def test_a_result_of_any_size_arrives_as_bytes(pair: Pair, size: int) -> None:
    value = pattern(size)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pair.end.send, pack_result(1, value))
        report = pair.receive()
        sent.result(PATIENCE_S)

    assert isinstance(report, wire.Report)
    assert type(report.ended.value) is bytes
    assert report.ended.value == value
    assert not pair.channel.receiving


@pytest.mark.parametrize("size", [BESIDE_BYTES, BESIDE_BYTES + 1, 100_000, 3_000_001])
def test_buffers_of_any_size_arrive_writable_in_memory_of_their_own(pair: Pair, size: int) -> None:
    parcel = Parcel(b"pickle", [memoryview(pattern(size)), memoryview(pattern(2 * size))])
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pair.end.receive)
        pair.channel.send(wire.pack_task(1, 1, 1, None, "id", parcel, [b"input", parcel]))
        pair.flush()
        task = the_task(received.result(PATIENCE_S))
        pool.submit(pair.end.send, pack_result(1))
        pool.submit(pair.end.send, wire.pack_success(2, 1, parcel, 1.0, 2.0, 0.5, 7))
        pool.submit(pair.end.send, pack_result(3))
        reports = [pair.receive() for _ in range(3)]

    values = [report.ended.value for report in reports if isinstance(report, wire.Report)]
    assert (task.call, task.inputs) == (parcel, [b"input", parcel])
    assert values == [b"value", parcel, b"value"]
    buffers = [
        buffer for each in (task.call, task.inputs[1], values[1]) if isinstance(each, Parcel) for buffer in each.buffers
    ]
    for buffer in buffers:
        assert isinstance(buffer, memoryview)
        buffer[:1] = b"!"
    assert len({id(buffer.obj) for buffer in buffers if isinstance(buffer, memoryview)}) == len(buffers) == 6


@pytest.mark.parametrize("size", [65_536, 3_000_001])
def test_bytes_arrive_as_bytes(pair: Pair, size: int) -> None:
    parcel = Parcel(b"pickle", [pattern(size), memoryview(pattern(size)), pattern(size + 1)])
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pair.end.receive)
        pair.channel.send(wire.pack_task(1, 1, 1, None, "id", parcel))
        pair.flush()
        call = the_task(received.result(PATIENCE_S)).call

    assert call == parcel
    assert isinstance(call, Parcel)
    assert [type(buffer) for buffer in call.buffers] == [bytes, memoryview, bytes]


def test_bytes_arrive_whole_whatever_signals_come(pair: Pair) -> None:
    """A signal ends the wait for all of them."""
    rung = threading.Event()
    with ThreadPoolExecutor(1) as pool, alarm(lambda _number, _frame: rung.set()):
        parcel = Parcel(b"pickle", [pattern(10_000_000)])
        announcement, *pieces = wire.pack_task(1, 1, 1, None, "id", parcel)

        def send() -> None:
            os.write(pair.channel._tasks.fileno(), announcement)  # type: ignore[arg-type]
            joined = b"".join(pieces)  # type: ignore[arg-type]
            sender = socket.socket(fileno=os.dup(pair.channel.stream_fd))
            with sender:
                sender.settimeout(PATIENCE_S)
                sender.sendall(joined[:5_000_000])
                rung.wait(PATIENCE_S)
                sender.sendall(joined[5_000_000:])

        sent = pool.submit(send)
        call = the_task(pair.end.receive()).call
        sent.result(PATIENCE_S)

    assert call == parcel


def test_big_and_small_messages_keep_their_order_both_ways(pair: Pair) -> None:
    sizes = [10, 300_000, 10, 70_000, 3_000_000, 0, 10, 70_000]

    def serve() -> None:
        for _ in sizes:
            task = the_task(pair.end.receive())
            pair.end.send(pack_result(task.seq, as_bytes(task.call)))
            pair.end.send_if_room(wire.pack_progress(task.seq, 1, 1.0, 1.0))

    reports: list[wire.Report] = []
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        waiting = list(enumerate(sizes))
        deadline = time.monotonic() + PATIENCE_S
        while len(reports) < len(sizes):
            if waiting and pair.channel.send(pack(waiting[0][0], pattern(waiting[0][1]))):
                del waiting[0]
                continue
            pair.channel.flush()
            messages = [as_object(message) for message in pair.channel.receive()]
            reports += [message for message in messages if isinstance(message, wire.Report)]
            if not messages and len(reports) < len(sizes):
                pair.wait(deadline)
        served.result(PATIENCE_S)

    assert [report.seq for report in reports] == list(range(len(sizes)))
    assert [report.ended.value for report in reports] == [pattern(size) for size in sizes]


def test_a_body_in_pieces_arrives_in_theirs(pair: Pair) -> None:
    inputs = [pattern(100_000), b"", pattern(7)]
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pair.end.receive)
        assert pair.channel.send(wire.pack_task(1, 1, 1, None, "id", b"call", inputs))
        pair.flush()
        task = the_task(received.result(PATIENCE_S))

    assert (as_bytes(task.call), [as_bytes(one) for one in task.inputs]) == (b"call", inputs)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_tasks_sent_together_arrive_together_with_a_claim_for_each(pair: Pair, count: int) -> None:
    size = wire.PACKET_MAX // count - 100
    assert pair.channel.send_tasks([pack(seq, pattern(size)) for seq in range(count)])

    tasks = the_tasks(pair.end.receive())

    assert [(task.seq, task.call) for task in tasks] == [(seq, pattern(size)) for seq in range(count)]
    assert [pair.end.claim() for _ in range(count + 1)] == [True] * count + [False]


def test_a_big_task_has_one_claim(pair: Pair) -> None:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pair.end.receive)
        assert pair.channel.send_tasks([pack(1, pattern(1_000_000))])
        pair.flush()
        task = the_task(received.result(PATIENCE_S))

    assert task.call == pattern(1_000_000)
    assert [pair.end.claim(), pair.end.claim()] == [True, False]


# --- never blocking ---


def test_a_full_socket_refuses_and_sends_nothing_nor_claims(pair: Pair) -> None:
    sent = 0
    while pair.channel.send_tasks([pack(sent)]):
        sent += 1
        assert sent < 100_000

    assert not pair.channel.send_tasks([pack(sent), pack(sent + 1)])
    assert [the_task(pair.end.receive()).seq for _ in range(sent)] == list(range(sent))
    assert pair.channel.revoke() == sent
    with pytest.raises(BlockingIOError):
        pair.end._tasks.recv(1, socket.MSG_DONTWAIT)


def test_a_big_task_that_nobody_reads_does_not_block(pair: Pair) -> None:
    assert pair.channel.send(pack(1, bytes(50_000_000)))

    assert not pair.channel.flush()
    assert pair.channel.sending
    assert not pair.channel.send(pack(2, bytes(100_000))), "two frames on the stream would be one mess"
    assert pair.channel.send(pack(3)), "small ones do not wait for it"


def test_nothing_there_is_none(pair: Pair) -> None:
    assert pair.channel.receive() == []
    assert not pair.channel.receiving
    assert pair.channel.moves == 0
    assert pair.channel.revoke() == 0
    assert not pair.end.claim()
    assert pair.channel.flush()
    assert not pair.channel.hung_up


def test_progress_is_dropped_rather_than_waited_for(pair: Pair) -> None:
    for _ in range(100_000):  # far more than any socket holds
        pair.end.send_if_room(wire.pack_progress(1, 1, 1.0, 1.0))

    assert isinstance(pair.receive(), wire.Progress)


# --- one read takes many ---


def test_one_read_takes_all_that_is_there(pair: Pair) -> None:
    for seq in range(64):
        pair.end.send(pack_result(seq))
    pair.end.send(wire.READY_FRAME)

    messages = pair.channel.receive()

    assert seqs(messages) == list(range(64))
    assert isinstance(messages[-1], wire.Ready)
    assert pair.channel.receive() == []


def test_a_frame_that_comes_byte_by_byte_arrives(pair: Pair) -> None:
    first = in_one(pack_result(1))
    data = first + wire.pack_progress(1, 1, 2.0, 3.0)
    messages = []
    for end in range(1, len(data) + 1):
        os.write(pair.fds[1], data[end - 1 : end])
        messages += pair.channel.receive()
        assert pair.channel.receiving is (end not in {len(first), len(data)})

    assert [type(as_object(message)) for message in messages] == [wire.Report, wire.Progress]


@pytest.mark.parametrize("cut", [1, 55, 56, 57, 100_000, 299_999])
def test_a_big_frame_cut_anywhere_arrives_between_its_neighbours(pair: Pair, cut: int) -> None:
    big = in_one(pack_result(2, pattern(300_000)))
    reports = []
    with ThreadPoolExecutor(1) as pool:
        for part in (in_one(pack_result(1)) + big[:cut], big[cut:] + in_one(pack_result(3))):
            sent = pool.submit(pair.end._stream.sendall, part)
            while not sent.done() or select.select([pair.channel.stream_fd], [], [], 0)[0]:
                reports += [as_object(message) for message in pair.channel.receive()]

    values = [report.ended.value for report in reports if isinstance(report, wire.Report)]
    assert values == [b"value", pattern(300_000), b"value"]


def test_what_is_no_message_is_told_after_the_good_ones_and_for_good(pair: Pair) -> None:
    os.write(pair.fds[1], in_one(pack_result(1)) + in_one(pack_result(2)) + b"garbage")

    assert seqs(pair.channel.receive()) == [1, 2]
    with pytest.raises(wire.WireError):
        pair.channel.receive()
    os.write(pair.fds[1], in_one(pack_result(3)))
    with pytest.raises(wire.WireError):
        pair.channel.receive()


# --- several speak at once ---


@pytest.mark.parametrize("size", [1, 1000, 4096, 20_000, wire.PIECE_MAX])
def test_a_piece_is_sent_whole_or_not_at_all(pair: Pair, size: int) -> None:
    """In a full socket too, whatever room it has: else a frame that is dropped would leave a part behind."""
    piece = b"x" + pattern(size - 1)
    for asked in (4, 100_000, 2_000_000):  # the kernel has a least of its own, and a most
        pair.end._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, asked)
        room = pair.end._stream.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        pair.end.piece_max = min(wire.PIECE_MAX, room // 2 - 64)
        fits = size <= pair.end.piece_max
        sent = 0
        while sent < 1000 and pair.end.send_if_room(piece):
            sent += 1

        assert fits is (sent > 0)
        assert drained(pair.channel) == piece * sent


@pytest.mark.parametrize("size", [1000, wire.PIECE_MAX])
def test_a_piece_that_waits_for_room_is_not_sent_if_a_signal_handler_raises(pair: Pair, size: int) -> None:
    stuffed = 0
    while pair.end.send_if_room(bytes(1000)):
        stuffed += 1000

    def interrupt(_number: int, _frame: object) -> None:
        raise Terminated

    with alarm(interrupt), pytest.raises(Terminated):
        pair.end.send_piece(pattern(size))

    assert drained(pair.channel) == bytes(stuffed)


@contextlib.contextmanager
def alarm(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Have a signal handled soon in this thread."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("size", "rounds"), [(10, 300), (200_000, 100), (3_000_000, 10)])
def test_threads_that_speak_never_get_into_a_frame(pair: Pair, size: int, rounds: int) -> None:
    """Neither one that drops what finds no room, nor one that waits for it."""
    stop = threading.Event()
    said = [0, 0]

    def chatter(speaker: int) -> None:
        say = (pair.end.send_if_room, pair.end.send_piece)[speaker]
        while not stop.is_set():
            said[speaker] += say(wire.pack_progress(said[speaker], speaker, 1.0, 2.0))

    def work() -> None:
        pair.end._main = threading.get_ident()  # as a worker's main thread
        for seq in range(rounds):
            pair.end.send(pack_result(seq, pattern(size)))

    reports: list[wire.Report] = []
    heard: list[list[int]] = [[], []]
    with ThreadPoolExecutor(3) as pool:
        pool.submit(work)
        speakers = [pool.submit(chatter, speaker) for speaker in (0, 1)]
        try:
            while len(reports) < rounds or not all(heard):
                message = pair.receive()
                if isinstance(message, wire.Report):
                    reports.append(message)
                elif isinstance(message, wire.Progress):
                    heard[message.fence].append(message.seq)
        finally:
            stop.set()
            while not all(speaker.done() for speaker in speakers):  # one may wait for room
                pair.channel.receive()

    assert [report.seq for report in reports] == list(range(rounds))
    assert all(report.ended.value == pattern(size) for report in reports)
    assert heard == [list(range(len(numbers))) for numbers in heard]


def test_a_signal_handler_that_speaks_amid_a_big_frame_is_not_heard(pair: Pair) -> None:
    value = pattern(10_000_000)
    answered = threading.Event()
    answers = []

    def speak(_number: int, _frame: object) -> None:
        answers.append(pair.end.send_if_room(wire.READY_FRAME))
        answers.append(pair.end.send_piece(wire.READY_FRAME))  # to wait would be for good
        answered.set()

    def read_late() -> wire.OtherMessage:
        answered.wait(PATIENCE_S)  # the sender waits for room until then
        return pair.receive()

    with ThreadPoolExecutor(1) as pool, alarm(speak):
        received = pool.submit(read_late)
        pair.end.send(pack_result(1, value))
        report = received.result(PATIENCE_S)

    assert answers == [False, False]
    assert isinstance(report, wire.Report)
    assert report.ended.value == value
    assert pair.end.send_if_room(wire.READY_FRAME)


def test_nothing_is_said_behind_a_big_frame_that_was_cut_short(pair: Pair) -> None:
    """A thread that waits to speak must not take up where the exception left off."""
    report = pack_result(1, pattern(10_000_000))
    answers: list[Future[bool]] = []

    def give_up(_number: int, _frame: object) -> None:
        answers.append(pool.submit(pair.end.send_piece, wire.READY_FRAME))
        raise Terminated

    with ThreadPoolExecutor(1) as pool:
        with alarm(give_up), pytest.raises(Terminated):
            pair.end.send(report)
        assert not answers[0].result(PATIENCE_S)

    assert not pair.end.send_if_room(wire.READY_FRAME)


def test_what_is_too_big_for_a_piece_or_a_forked_childs_is_not_said(pair: Pair) -> None:
    for say in (pair.end.send_if_room, pair.end.send_piece):
        assert not say(bytes(wire.PIECE_MAX + 1))
    pair.end.is_child = True
    for say in (pair.end.send_if_room, pair.end.send_piece):
        assert not say(wire.READY_FRAME)

    assert pair.channel.receive() == []


# --- taking back ---


def test_what_is_taken_back_are_the_last_tasks_whatever_was_read(pair: Pair) -> None:
    assert pair.channel.send_tasks([pack(1), pack(2), pack(3)])
    assert pair.channel.send_tasks([pack(4)])
    assert isinstance(pair.end.receive(), list)
    assert pair.end.claim()

    assert pair.channel.revoke() == 3
    assert pair.channel.revoke() == 0
    assert not pair.end.claim()


@pytest.mark.parametrize("size", [0, 40_000, wire.PACKET_MAX - 100])
def test_a_drop_finds_room_in_a_full_socket_again_and_again(pair: Pair, size: int) -> None:
    for _ in range(3):
        sent = 0
        while pair.channel.send_tasks([pack(sent, bytes(size))]):
            sent += 1
        assert not pair.channel.send(wire.EXIT_FRAME), "it proves nothing if the socket is not full"

        assert pair.channel.revoke() == sent
        assert pair.channel.drop()

        assert [the_task(pair.end.receive()).seq for _ in range(sent)] == list(range(sent))
        assert isinstance(pair.end.receive(), wire.Drop)


def test_after_a_drop_there_are_claims_again(pair: Pair) -> None:
    assert pair.channel.send_tasks([pack(1)])
    assert pair.channel.revoke() == 1
    assert pair.channel.drop()
    assert the_task(pair.end.receive()).seq == 1
    assert not pair.end.claim()
    assert isinstance(pair.end.receive(), wire.Drop)
    pair.end.send(wire.DROPPED_FRAME)
    assert isinstance(pair.receive(), wire.Dropped)

    assert pair.channel.send_tasks([pack(2)])

    assert the_task(pair.end.receive()).seq == 2
    assert pair.end.claim()


#: Begins tasks as fast as can be, by the same steps as a worker.
CLAIMER = """
import sys
from procq.engine.local import wire
from procq.engine.local.transport import WorkerEnd

end = WorkerEnd(*map(int, sys.argv[1:]))
waiting = []
while True:
    if waiting and end.claim():
        end.send(wire.pack_success(waiting.pop(0)[0], 1, b"value", 1.0, 2.0, 0.5, 7))
        continue
    message = end.receive()
    if isinstance(message, list):
        waiting += message
    elif isinstance(message, wire.Drop):
        waiting.clear()
        end.send(wire.DROPPED_FRAME)
    else:
        break
"""


@pytest.mark.processes
def test_each_task_is_begun_or_taken_back_never_both_never_neither(pair: Pair) -> None:
    """The kernel is the arbiter between the worker and the supervisor (DESIGN 3)."""
    rounds, count = 800, 32
    chance = random.Random(1)
    with subprocess.Popen([sys.executable, "-c", CLAIMER, *map(str, pair.fds)], pass_fds=pair.fds) as claimer:
        shared = 0
        for first in range(0, rounds * count, count):
            frames = [pack(seq) for seq in range(first, first + count)]
            in_packet = chance.choice([1, 5, count])
            for at in range(0, count, in_packet):
                assert pair.channel.send_tasks(frames[at : at + in_packet])
            # From at once until nearly all are done.
            begun = [reported(pair.receive()) for _ in range(chance.randrange(count))]
            revoked = pair.channel.revoke()
            assert pair.channel.drop()
            while not isinstance(message := pair.receive(), wire.Dropped):
                begun.append(reported(message))

            assert begun == list(range(first, first + count - revoked))
            shared += 0 < revoked < count
        assert pair.channel.send(wire.EXIT_FRAME)
        assert claimer.wait(PATIENCE_S) == 0

    assert shared, "no race happened at all"


def reported(message: wire.OtherMessage) -> int:
    assert isinstance(message, wire.Report), message
    return message.seq


def test_two_threads_share_the_claims_without_losing_any() -> None:
    """Both sides claim at full speed, in any order, while more come."""
    pair = Pair()
    total, sent, revoked = 20_000, 0, 0
    claimed = 0
    done = threading.Event()

    def work() -> None:
        nonlocal claimed
        while not done.is_set():
            claimed += pair.end.claim()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        while sent < total:
            os.eventfd_write(pair.fds[2], 10)
            sent += 10
            if sent % 3 == 0:
                revoked += pair.channel.revoke()
    finally:
        done.set()
        worker.join(PATIENCE_S)
    revoked += pair.channel.revoke()
    pair.close()

    assert claimed + revoked == total
    assert claimed
    assert revoked


def test_a_cheat_that_spoils_the_claims_holds_up_nobody(pair: Pair) -> None:
    os.eventfd_write(pair.fds[2], 2**64 - 2)  # as many as there can be

    with pytest.raises(wire.WireError, match="claims"):
        pair.channel.send_tasks([pack(1)])
    assert 1 < pair.channel.revoke() < 100_000


# --- the worker's end is gone, or a cheat's ---


def test_a_worker_that_is_gone_is_hung_up_after_its_last_words(pair: Pair) -> None:
    pair.end.send(pack_result(1))
    pair.close_worker()

    assert seqs(pair.channel.receive()) == [1]
    assert pair.channel.receive() == []
    assert pair.channel.hung_up
    with pytest.raises(wire.WireError):
        pair.channel.send_tasks([pack(2), pack(3)])
    assert pair.channel.revoke() == 2


@pytest.mark.parametrize("size", [10, 20_000, 100_000, 200_000])
def test_a_worker_that_dies_within_a_result_is_hung_up(pair: Pair, size: int) -> None:
    os.write(pair.fds[1], in_one(pack_result(1)) + in_one(pack_result(2, bytes(size)))[: 56 + size // 2])
    pair.close_worker()

    messages = []
    while not pair.channel.hung_up:
        messages += pair.channel.receive()
    assert seqs(messages) == [1]
    assert pair.channel.receiving


def test_what_a_worker_said_before_it_died_amid_a_big_task_is_read(pair: Pair) -> None:
    """What it left unread makes the kernel report an error, which must not hide its last words."""
    assert pair.channel.send_tasks([pack(1, bytes(50_000_000))])
    pair.end.send(pack_result(7))
    pair.close_worker()
    assert pair.channel.flush()

    assert seqs(pair.channel.receive()) == [7]
    assert pair.channel.receive() == []
    assert pair.channel.hung_up


def test_a_worker_that_dies_within_a_big_task_ends_the_sending(pair: Pair) -> None:
    assert pair.channel.send_tasks([pack(1, bytes(50_000_000))])
    pair.close_worker()

    assert pair.channel.flush()
    assert pair.channel.hung_up
    assert not pair.channel.sending
    assert pair.channel.revoke() == 1


@pytest.mark.parametrize(
    "garbage", [b"x", b"\x06" * 70, bytes(100_000), b"\xff" * 200_000], ids=lambda data: str(len(data))
)
def test_garbage_is_a_wire_error(pair: Pair, garbage: bytes) -> None:
    os.write(pair.fds[1], garbage)

    with pytest.raises(wire.WireError):
        pair.channel.receive()


def test_a_big_frame_that_is_garbage_is_a_wire_error_for_good(pair: Pair) -> None:
    frame = bytearray(in_one(wire.pack_start_failed(wire.StartFailed("E", "x" * 200_000, ""))))
    frame[16:20] = b"\xff" * 4  # the length of the first text
    os.write(pair.fds[1], frame)

    pair.channel.receive()
    with pytest.raises(wire.WireError):
        pair.channel.receive()
    assert not pair.channel.receiving
    with pytest.raises(wire.WireError):
        pair.channel.receive()


@pytest.mark.parametrize("size", [2**46, 2**62])
def test_an_absurd_buffer_is_a_wire_error_for_good(pair: Pair, size: int) -> None:
    parcel = Parcel(b"pickle", [memoryview(b"x")])
    frame = bytearray(in_one(wire.pack_success(1, 1, parcel, 1.0, 2.0, 0.5, 7)))
    at = len(frame) - len(b"pickle") - 1 - 8
    frame[at : at + 8] = size.to_bytes(8, "little")
    os.write(pair.fds[1], frame)

    def receive_all() -> None:
        for _ in range(3):
            pair.channel.receive()

    for _ in range(2):
        with pytest.raises(wire.WireError):
            receive_all()


def test_an_absurd_announcement_takes_no_memory(pair: Pair) -> None:
    frame = bytearray(in_one(pack_result(1)))
    frame[48:56] = (2**46).to_bytes(8, "little")
    os.write(pair.fds[1], frame)

    assert pair.channel.receive() == []
    assert pair.channel.receiving


def test_a_shut_down_socket_is_a_wire_error_or_a_hang_up(pair: Pair) -> None:
    for fd in pair.fds[:2]:
        with socket.socket(fileno=os.dup(fd)) as cheat:
            cheat.shutdown(socket.SHUT_RDWR)

    with pytest.raises(wire.WireError):
        pair.channel.send(pack(1))
    assert pair.channel.revoke() == 0
    assert pair.channel.receive() == []
    assert pair.channel.hung_up


# --- the worker's side ---


def test_the_end_of_the_tasks_tells_a_worker_to_leave(pair: Pair) -> None:
    pair.channel.close()

    assert isinstance(pair.end.receive(), wire.Leave)


def test_without_its_descriptors_a_worker_gets_an_os_error(pair: Pair) -> None:
    for fd in pair.fds:
        os.close(fd)

    with pytest.raises(OSError, match="descriptor"):
        pair.end.receive()
    with pytest.raises(OSError, match="descriptor"):
        pair.end.send(wire.READY_FRAME)
    with pytest.raises(OSError, match="descriptor"):
        pair.end.claim()
    assert not pair.end.send_if_room(wire.READY_FRAME)


def test_a_worker_whose_claims_lead_elsewhere_gets_an_os_error(pair: Pair) -> None:
    assert not pair.end.claim()  # leaves an `errno` that would pass for its answer
    with open(os.devnull, "rb") as other:  # noqa: PTH123
        os.dup2(other.fileno(), pair.fds[2], inheritable=False)

    with pytest.raises(OSError, match="no counter"):
        pair.end.claim()


# --- descriptors ---


def test_no_descriptor_is_passed_on_by_exec(pair: Pair) -> None:
    ours = [pair.channel.stream_fd, *pair.fds]

    assert not any(os.get_inheritable(fd) for fd in ours)


def test_closing_twice_is_harmless(pair: Pair) -> None:
    pair.channel.close()
    pair.channel.close()

    assert pair.channel.revoke() == 0
    with pytest.raises(wire.WireError):
        pair.channel.send_tasks([pack(1)])


def test_descriptors_stay_clear_of_closed_standard_streams() -> None:
    program = (
        "import os, sys; os.close(0); os.close(1); os.close(2)\n"
        "from procq.engine.local.transport import Channel\n"
        "c = Channel()\n"
        "fds = [*c.worker_fds, c.stream_fd, c._tasks.fileno()]\n"
        "ok = min(fds) >= 3 and not any(os.get_inheritable(fd) for fd in fds)\n"
        "c.close()\n"
        "os._exit(0 if ok and os.listdir('/proc/self/fd') == ['0'] else 1)\n"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_S).returncode == 0


def test_a_descriptor_from_three_up_stays_what_it_is() -> None:
    end, other = os.pipe()
    assert above_standard_streams(end) == end
    os.close(end)
    os.close(other)
