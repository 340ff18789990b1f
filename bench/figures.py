"""The figures: what each means, and what DESIGN asks of it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Figure(NamedTuple):
    """One measured number.

    Attributes:
        name: key in `results.json`.
        meaning: what was measured, for a reader of the table.
        target: what it should stay at or below (for `times`: at or above); None where it is only reported.
        unit: how it is written; `times` are better the larger they are.
    """

    name: str
    meaning: str
    target: float | None = None
    unit: str = ""

    def missed(self, value: float) -> bool:
        """Whether a value misses the target."""
        if self.target is None:
            return False
        return value < self.target if self.unit == "times" else value > self.target


FIGURES: Final = (
    Figure("raw_append_sync_us", "raw append of a step's bytes and fdatasync", unit="µs"),
    Figure("record_safe_ratio", "recorded safe step, `durable`, to the raw append", 1.5, "x"),
    Figure("record_unsafe_ratio", "recorded unsafe step (intent and outcome synced)", 2.8, "x"),
    Figure("gather_ratio", "each of 500 concurrent steps (`gather`)", 0.45, "x"),
    Figure("threads_ratio", "each step of 32 threads", 0.45, "x"),
    Figure("record_process_us", "recorded step, `process`", 40, "µs"),
    Figure("replay_us_per_step_1000", "replayed step of a run of 1,000", 15, "µs"),
    Figure("replay_us_per_step_10000", "replayed step of a run of 10,000", 15, "µs"),
    Figure("replay_us_per_step_100000", "replayed step of a run of 100,000", 15, "µs"),
    Figure("resume_process_s", "process that resumes 500 steps, beyond the interpreter", 0.2, "s"),
    Figure("open_100000_s", "open a run of 100,000 events", 1, "s"),
    Figure("open_100000_unaided_s", "open it without its checkpoint", 1, "s"),
    Figure("open_100000_memory_per_file_byte", "memory of that process for each byte of the log", 2, "bytes"),
    Figure("runs_10000_rss_kb", "memory that 8,000 further runs leave in a process", 4_000, "KB"),
    Figure("runs_10000_left", "objects, descriptors and threads that they leave", 20),
    Figure("import_ms", "`import steplog`", 30, "ms"),
    Figure("ready_ms", "`import steplog`, `install()` without interceptors, and a first step", unit="ms"),
    Figure("disk_bytes_per_payload_byte", "disk, steps of 1 KB, for each byte of payload", 1.3, "bytes"),
    Figure("chat_200_plain_mb", "conversation of 200 turns as plain requests", unit="MB"),
    Figure("chat_200_mb", "the same on disk", 0.5, "MB"),
    Figure("chat_1000_mb", "conversation of 1,000 turns on disk", 2.5, "MB"),
    Figure("first_chunk_ms", "first chunk of a stream, later than without steplog", 1, "ms"),
    Figure("concurrent_overhead_pct", "1,000 concurrent calls of a local provider, slower by", 5, "%"),
    Figure("dbos_record_times", "DBOS (SQLite): recording takes so many times as long", 6, "times"),
    Figure("dbos_resume_times", "DBOS (SQLite): resuming", 10, "times"),
    Figure("langgraph_record_times", "LangGraph (SqliteSaver): recording", 4, "times"),
    Figure("langgraph_resume_times", "LangGraph (SqliteSaver): resuming", 10, "times"),
    Figure("call4agents_record_times", "call4agents: recording", 2.5, "times"),
    Figure("call4agents_resume_times", "call4agents: resuming", 2, "times"),
)
"""In the order in which they are shown. What is measured beyond these is in `results.json` alone."""
