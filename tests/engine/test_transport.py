"""Frames arrive whole and in order, whatever their size, and nothing blocks on the supervisor's side."""

import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture

from procq.engine.local import wire
from procq.engine.local.transport import Channel, WorkerEnd, above_standard_streams
from procq.outcome import Ended

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZES = [0, 1, wire.PACKET_MAX - 200, wire.PACKET_MAX, wire.PACKET_MAX + 1, 1_000_000, 10_000_000]
PATIENCE_S = 20.0


class Pair:
    """Both sides in one process: the worker's on duplicates, as a child has them."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.fds = [os.dup(fd) for fd in self.channel.worker_fds]
        self.end = WorkerEnd(*self.fds)
        self.channel.close_worker_ends()

    def receive(self) -> wire.UpMessage:
        """Wait for the next message up."""
        deadline = time.monotonic() + PATIENCE_S
        while (message := self.channel.receive()) is None:
            assert not self.channel.hung_up
            self.wait(deadline)
        return message

    def flush(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.channel.flush():
            self.wait(deadline)

    def wait(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.channel.result_fd, select.POLLIN)
        stream = (select.POLLIN if self.channel.receiving else 0) | (select.POLLOUT if self.channel.sending else 0)
        if stream:
            poll.register(self.channel.stream_fd, stream)
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


def pack_result(seq: int, value: bytes = b"value") -> wire.Frame:
    return wire.pack_ended(seq, 1, Ended("ok", 1.0, 2.0, value=value))


def the_task(message: wire.DownMessage) -> wire.Task:
    """Return the only task of a message."""
    assert isinstance(message, list)
    (task,) = message
    return task


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


def test_big_and_small_messages_keep_their_order_both_ways(pair: Pair) -> None:
    sizes = [10, 300_000, 10, 70_000, 3_000_000, 0, 10, 70_000]

    def serve() -> None:
        for _ in sizes:
            task = the_task(pair.end.receive())
            pair.end.send(pack_result(task.seq, bytes(task.call)))
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
            message = pair.channel.receive()
            if isinstance(message, wire.Report):
                reports.append(message)
            elif message is None:
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

    assert (bytes(task.call), [bytes(one) for one in task.inputs]) == (b"call", inputs)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_tasks_sent_together_arrive_together_with_a_claim_for_each(pair: Pair, count: int) -> None:
    size = wire.PACKET_MAX // count - 100
    assert pair.channel.send_tasks([pack(seq, pattern(size)) for seq in range(count)])

    tasks = pair.end.receive()

    assert isinstance(tasks, list)
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
    assert pair.channel.receive() is None
    assert pair.channel.receive_bulk() is None
    assert pair.channel.revoke() == 0
    assert not pair.end.claim()
    assert pair.channel.flush()
    assert not pair.channel.hung_up


def test_progress_is_dropped_rather_than_waited_for(pair: Pair) -> None:
    for _ in range(100_000):  # far more than any socket holds
        pair.end.send_if_room(wire.pack_progress(1, 1, 1.0, 1.0))

    assert isinstance(pair.receive(), wire.Progress)


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
from procq.outcome import Ended

end = WorkerEnd(*map(int, sys.argv[1:]))
waiting = []
while True:
    if waiting and end.claim():
        end.send(wire.pack_ended(waiting.pop(0).seq, 1, Ended("ok", 1.0, 2.0, value=b"value")))
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


def reported(message: wire.UpMessage) -> int:
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
            os.eventfd_write(pair.fds[3], 10)
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
    os.eventfd_write(pair.fds[3], 2**64 - 2)  # as many as there can be

    with pytest.raises(wire.WireError, match="claims"):
        pair.channel.send_tasks([pack(1)])
    assert 1 < pair.channel.revoke() < 100_000


# --- the worker's end is gone, or a cheat's ---


def test_a_worker_that_is_gone_is_hung_up_after_its_last_words(pair: Pair) -> None:
    pair.end.send(pack_result(1))
    pair.close_worker()

    assert isinstance(pair.channel.receive(), wire.Report)
    assert pair.channel.receive() is None
    assert pair.channel.hung_up
    with pytest.raises(wire.WireError):
        pair.channel.send_tasks([pack(2), pack(3)])
    assert pair.channel.revoke() == 2


def test_a_worker_that_dies_within_a_big_result_is_hung_up(pair: Pair) -> None:
    frame = pack_result(1, bytes(100_000))
    assert isinstance(frame, list)
    os.write(pair.fds[1], wire.announce(frame))
    os.write(pair.fds[2], frame[0] + b"half")
    pair.close_worker()

    assert pair.channel.receive() is None
    assert pair.channel.receive_bulk() is None
    assert pair.channel.hung_up
    assert pair.channel.receiving


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


def test_garbage_on_the_stream_is_a_wire_error(pair: Pair) -> None:
    os.write(pair.fds[1], wire.announce([bytes(100), bytes(50)]))
    os.write(pair.fds[2], b"?" * 150)

    with pytest.raises(wire.WireError):
        pair.channel.receive()


def test_an_absurd_announcement_takes_no_memory(pair: Pair) -> None:
    announcement = bytearray(wire.announce([wire.READY_FRAME, b""]))
    announcement[-16:] = b"\xff" * 7 + b"\x7f" + b"\xff" * 7 + b"\x7f"
    os.write(pair.fds[1], announcement)
    os.write(pair.fds[2], b"a little")

    assert pair.channel.receive() is None
    assert pair.channel.receiving


def test_a_shut_down_socket_is_a_wire_error_or_a_hang_up(pair: Pair) -> None:
    for fd in pair.fds[:3]:
        with socket.socket(fileno=os.dup(fd)) as cheat:
            cheat.shutdown(socket.SHUT_RDWR)

    with pytest.raises(wire.WireError):
        pair.channel.send(pack(1))
    assert pair.channel.revoke() == 0
    assert pair.channel.receive() is None
    assert pair.channel.hung_up


def test_an_empty_packet_is_a_hang_up(pair: Pair) -> None:
    with socket.socket(fileno=os.dup(pair.fds[1])) as cheat:
        cheat.send(b"")

    assert pair.channel.receive() is None
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
    pair.end.send_if_room(wire.READY_FRAME)


def test_a_worker_whose_claims_lead_elsewhere_gets_an_os_error(pair: Pair) -> None:
    assert not pair.end.claim()  # leaves an `errno` that would pass for its answer
    with open(os.devnull, "rb") as other:  # noqa: PTH123
        os.dup2(other.fileno(), pair.fds[3], inheritable=False)

    with pytest.raises(OSError, match="no counter"):
        pair.end.claim()


# --- descriptors ---


def test_no_descriptor_is_passed_on_by_exec(pair: Pair) -> None:
    ours = [pair.channel.result_fd, pair.channel.stream_fd, *pair.fds]

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
        "fds = [*c.worker_fds, c.result_fd, c.stream_fd, c._tasks.fileno()]\n"
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
