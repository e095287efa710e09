"""What procq logs is logged as ever, though `logging` is imported late (contract H2)."""

import io
import logging
import sys

import pytest

from procq.log import DEBUG, ERROR, WARNING, Logger


def test_a_message_comes_from_the_logger_of_the_name_and_from_the_callers_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Logger("procq.some").log(WARNING, "%d of %s", 3, "many")

    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == ("procq.some", logging.WARNING, "3 of many")
    assert record.pathname == __file__
    assert record.exc_info is None


def test_an_error_takes_its_traceback_along(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("x")
    except ValueError:
        Logger("procq.some").log(ERROR, "it failed", exc_info=True)

    assert "invalid literal" in caplog.text


def test_where_logging_cannot_be_imported_the_message_is_seen_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where no descriptor is left, of which the supervisor's message tells."""
    monkeypatch.setitem(sys.modules, "logging", None)

    Logger("procq.some").log(ERROR, "%d workers cannot start", 2)
    Logger("procq.some").log(ERROR, "100% lost")

    assert capsys.readouterr().err == "2 workers cannot start\n100% lost\n"


def test_where_nobody_has_imported_logging_the_same_is_told_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is less than a warning nobody wants to see then; and the import might have to wait for another."""
    monkeypatch.delitem(sys.modules, "logging")

    Logger("procq.some").log(DEBUG, "nobody wants to know")
    try:
        int("x")
    except ValueError:
        Logger("procq.some").log(ERROR, "it failed", exc_info=True)

    assert "logging" not in sys.modules
    told = capsys.readouterr().err
    assert told.startswith("it failed\nTraceback (most recent call last):\n")
    assert told.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")


def test_a_standard_error_whose_reader_has_gone_stops_nobody_who_has_something_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `logging`: a thread of ours that ended by it would leave callers waiting."""

    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.delitem(sys.modules, "logging")
    monkeypatch.setattr(sys, "stderr", Broken())

    try:
        int("x")
    except ValueError:
        Logger("procq.some").log(ERROR, "it failed", exc_info=True)
