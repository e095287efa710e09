"""The ladder: what makes a run stop, how hard, and by which signal it will die."""

from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from procq.cli.stopping import Ladder, Step
from procq.halting import Halted


def test_three_presses_climb_three_steps() -> None:
    ladder = Ladder()

    steps = [ladder.signalled(SIGINT, now) for now in (1.0, 2.0, 3.0, 4.0)]

    assert steps == [Step.FINISH, Step.KILL, Step.KILL_NOW, None]
    assert (ladder.cause, ladder.signal) == ("signal", SIGINT)


def test_ctrl_c_is_not_bounded() -> None:
    ladder = Ladder()

    ladder.signalled(SIGINT, 1.0)

    assert ladder.next_due() is None
    assert ladder.passed(1e9) is None


def test_the_stop_timeout_bounds_ctrl_c_where_it_is_given() -> None:
    ladder = Ladder(stop_timeout_s=5.0)
    ladder.signalled(SIGINT, 1.0)

    assert ladder.next_due() == 6.0
    assert ladder.passed(5.9) is None
    assert ladder.passed(6.0) is Step.KILL
    assert ladder.next_due() is None


def test_sigterm_is_bounded_by_eight_seconds() -> None:
    ladder = Ladder()

    assert ladder.signalled(SIGTERM, 1.0) is Step.FINISH
    assert ladder.next_due() == 9.0
    assert ladder.passed(9.0) is Step.KILL
    assert ladder.signal is SIGTERM


def test_sigterm_is_bounded_by_the_stop_timeout_where_it_is_given() -> None:
    ladder = Ladder(stop_timeout_s=2.0)

    ladder.signalled(SIGTERM, 1.0)

    assert ladder.next_due() == 3.0


def test_a_closing_terminal_may_hang_up_more_than_once() -> None:
    ladder = Ladder()

    steps = [ladder.signalled(SIGHUP, 1.0), ladder.signalled(SIGHUP, 1.1), ladder.signalled(SIGTERM, 1.2)]

    assert steps == [Step.FINISH, None, None]
    assert ladder.next_due() == 9.0


def test_sigterm_bounds_what_ctrl_c_did_not() -> None:
    ladder = Ladder()
    ladder.signalled(SIGINT, 1.0)

    assert ladder.signalled(SIGTERM, 5.0) is None
    assert ladder.next_due() == 13.0
    assert ladder.signal is SIGINT


def test_G6_a_halt_finishes_and_ctrl_c_then_kills() -> None:
    ladder = Ladder()

    assert (ladder.halted(Halted("max_failures", "finish", 2)), ladder.cause) == (Step.FINISH, "max_failures")
    assert (ladder.signalled(SIGINT, 1.0), ladder.cause) == (Step.KILL, "signal")


@pytest.mark.parametrize("news", [Halted("max_failures", "kill", 2), Halted("deadline", "kill", 2)])
def test_G6_a_halt_that_kills_is_no_signal(news: Halted) -> None:
    ladder = Ladder()

    assert ladder.halted(news) is Step.KILL
    assert ladder.cause == news.why
    assert ladder.signal is None
    assert ladder.signalled(SIGINT, 1.0) is Step.KILL_NOW


def test_G6_a_halt_after_ctrl_c_counts_if_it_is_harsher() -> None:
    ladder = Ladder()
    ladder.signalled(SIGINT, 1.0)

    assert (ladder.halted(Halted("max_failures", "finish", 2)), ladder.cause) == (None, "signal")
    assert (ladder.halted(Halted("deadline", "kill", 2)), ladder.cause) == (Step.KILL, "deadline")


def test_a_broken_producer_lets_what_runs_finish() -> None:
    ladder = Ladder()

    assert ladder.broken() is Step.FINISH
    assert ladder.cause == "producer"
