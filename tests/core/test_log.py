"""What procq logs is logged as ever, though `logging` is imported late (contract H2)."""

import logging
import sys

import pytest

from procq.log import ERROR, WARNING, Logger


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
