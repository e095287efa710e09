"""Attempts as rows and as a timeline, made of events (UX 3.5)."""

from typing import Any, Final

from jsonschema import Draft202012Validator

from procq.cli.trace import COLUMNS, HEADER, chrome_of, rows_of, tsv_line

#: What Perfetto reads of Chrome's format: complete spans in microseconds, and names of processes and threads.
CHROME: Final = Draft202012Validator({
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid", "tid"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "args": {"type": "object"},
                },
                "oneOf": [
                    {
                        "properties": {
                            "ph": {"const": "X"},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                            "cat": {"type": "string"},
                        },
                        "required": ["ts", "dur"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {"enum": ["process_name", "thread_name"]},
                            "args": {"required": ["name"]},
                        },
                        "required": ["args"],
                    },
                ],
            },
        },
    },
})  # fmt: skip


def event(kind: str, t: float, seq: int = 1, /, **fields: object) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "t": t, "run": "k7f3", "ev": kind, "id": "a", **fields}


SUBMITTED: Final = event(
    "task.submitted", 10.0, type="f", priority=5, group="g", depends_on=[], run_at=None, max_attempts=2, args="x=1"
)


def ended(t: float, seq: int, **changes: object) -> dict[str, Any]:
    fields: dict[str, object] = {
        "attempt": 1, "outcome": "ok", "run_s": 2.0, "cpu_s": 1.0, "peak_rss": 4096, "exit_code": None,
        "signal": None, "error": None, "result_bytes": 5,
    }  # fmt: skip
    return event("attempt.ended", t, seq, **(fields | changes))


STORY: Final = [
    event("run.started", 9.0, workers=2, pid=77),
    SUBMITTED,
    event("task.ready", 10.5, reason=None),
    event("attempt.started", 11.0, attempt=1, worker=3, pid=99),
    ended(13.0, 5, outcome="error", error={"type": "ValueError", "message": "a\tb\nc\\", "traceback": "..."}),
    event("task.scheduled", 13.0, reason="backoff", in_s=1.0),
    event("task.ready", 14.0, reason=None),
    event("attempt.started", 14.5, attempt=2, worker=4, pid=98),
    ended(16.5, 9, attempt=2),
    event("task.ended", 16.5, status="succeeded", attempts=2, cause=None, origin=None),
]


def test_a_row_is_an_attempt_with_what_became_of_its_task() -> None:
    first, second = rows_of(STORY)

    assert [(row["attempt"], row["outcome"], row["status"]) for row in (first, second)] == [
        (1, "error", "scheduled"),
        (2, "ok", "succeeded"),
    ]
    assert (first["seq"], first["worker"], first["pid"], first["args"]) == (5, 3, 99, "x=1")
    assert (first["queued_at"], first["started_at"], first["ended_at"]) == (10.5, 11.0, 13.0)
    assert (first["wait_s"], first["run_s"], first["cpu_pct"]) == (0.5, 2.0, 50.0)
    assert second["queued_at"] == 14.0


def test_an_attempt_after_which_nothing_was_told_is_a_row_too() -> None:
    (row,) = rows_of(STORY[:5])

    assert row["status"] is None


def test_an_attempt_that_has_not_ended_is_none() -> None:
    assert list(rows_of(STORY[:4])) == []


def test_every_row_has_all_columns_in_the_order_of_the_header() -> None:
    assert (
        "seq id type attempt max_attempts outcome status worker pid queued_at started_at ended_at wait_s run_s "
        "cpu_user_s cpu_sys_s cpu_pct peak_rss exit_code signal error group priority args\n"
    ).replace(" ", "\t") == HEADER
    for row in rows_of(STORY):
        assert set(row) == set(COLUMNS)
        assert tsv_line(row).count("\t") == len(COLUMNS) - 1


def test_tabs_and_lines_ends_are_escaped() -> None:
    line = tsv_line(next(iter(rows_of(STORY))))

    assert line.count("\n") == 1
    assert "ValueError: a\\tb\\nc\\\\\t" in line


def test_a_name_that_is_no_utf_8_is_written_escaped() -> None:
    row = next(iter(rows_of(STORY)))

    assert "caf\\udce9" in tsv_line(row | {"args": "caf\udce9"})


def test_perfetto_can_read_the_timeline() -> None:
    found = chrome_of(STORY)

    assert list(CHROME.iter_errors(found)) == []
    spans = [one for one in found["traceEvents"] if one["ph"] == "X"]
    assert [(one["ts"], one["dur"], one["tid"]) for one in spans] == [(2e6, 2e6, 3), (5.5e6, 2e6, 4)]
    names = [one["args"]["name"] for one in found["traceEvents"] if one["ph"] == "M"]
    assert names == ["procq k7f3", "worker 3", "worker 4"]
