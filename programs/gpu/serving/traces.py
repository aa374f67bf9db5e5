"""Recorded traffic: when requests came, and how many tokens they had.

CSV files are told apart by their header. Azure's (github.com/Azure/AzurePublicDataset, 2023 and 2024): TIMESTAMP,
ContextTokens, GeneratedTokens, with dates. BurstGPT's (github.com/HPMLL/BurstGPT): Timestamp, Request tokens, Response
tokens and others (Model, Total tokens, Log Type; in its third part Session ID and Elapsed time, too), with seconds.
One's own: time, prompt_tokens, output_tokens, and priority if it has one. JSON files are lists of dialogues as
ShareGPT's, {"conversations": [{"value": TEXT}, {"value": TEXT}, ..]}: the first text is a prompt, the second an answer
of that length, as `vllm bench serve` reads it; they have no times.
"""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from meshrt.errors import UsageError
from meshrt.programs.generation.given import read_shared
from meshrt.ranks.control import Control
from meshrt.records import dataclass

FORMATS = {  # columns of time, prompt tokens, output tokens
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "plain": ("time", "prompt_tokens", "output_tokens"),
}
DIALOGUES = "sharegpt"
MOST = 1e12  # seconds that a time is below: those of today in milliseconds are not


@dataclass(frozen=True)
class Call:
    """One request of a trace, `time` seconds after the first; texts, where the trace has them, in place of lengths."""

    time: float
    prompt: int
    output: int
    priority: int = 0
    texts: tuple[str, str] | None = None


@dataclass(frozen=True)
class RequestTrace:
    """Its requests in order of time. `empty` rows, without prompt or answer (calls that failed), are left out."""

    format: str
    calls: tuple[Call, ...]
    empty: int


def read_trace(control: Control, path: str, most: int | None) -> RequestTrace:
    """The first `most` requests of a file, on all ranks. UsageError."""
    too_long = "; give its first lines, or fewer --requests"
    named, way = f"--trace-file {path}", "" if most is None or not os.path.isfile(path) else too_long
    text = read_shared(control, named, path, way, part=most is not None)
    if text.lstrip()[:1] in ("[", "{"):  # of dialogues no part can be read
        trace = _dialogues(path, read_shared(control, named, path, way), most)
    else:
        try:
            trace = _table(path, text, most)
        except csv.Error as error:
            raise UsageError(f"--trace-file {path} is no CSV: {error}; leave columns of long texts away") from None
        if most is not None and len(trace.calls) < most:
            read_shared(control, named, path, way)  # UsageError, if there would be more
    if not trace.calls:
        raise UsageError(f"--trace-file {path} has no request with a prompt and an answer")
    return trace


def _table(path: str, text: str, most: int | None) -> RequestTrace:
    lines = csv.reader(text.splitlines())
    header = [name.strip().lstrip("\ufeff") for name in next(lines, [])]
    kind = next((kind for kind, names in FORMATS.items() if set(names) <= {*header}), None)
    if kind is None:
        ways = "; ".join(", ".join(names) for names in FORMATS.values())
        raise UsageError(f"--trace-file {path}: the first line has to name the columns {ways}; or give JSON dialogues")
    columns = [header.index(name) for name in FORMATS[kind]]
    priority = header.index("priority") if kind == "plain" and "priority" in header else None
    calls: list[Call] = []
    empty = 0
    for number, line in enumerate(lines, 2):
        if most is not None and len(calls) == most:
            break
        if not line:
            continue
        try:
            time, prompt, output = (line[column].strip() for column in columns)
            later = 0 if priority is None else int(line[priority])
            call = Call(_seconds(time), _tokens(prompt), _tokens(output), later)
            if not -MOST < call.time < MOST or min(call.prompt, call.output) < 0:
                raise ValueError
        except (IndexError, ValueError, OverflowError):
            whole = (
                "whole numbers of tokens" if priority is None else "numbers of tokens and a priority, all three whole"
            )
            raise UsageError(
                f"--trace-file {path}, line {number}: {','.join(line)[:80]!r} is no time (seconds below {MOST:g}, or a"
                f" date) and two {whole}"
            ) from None
        if call.prompt and call.output:
            calls.append(call)
        else:
            empty += 1
    calls.sort(key=lambda call: call.time)
    return RequestTrace(kind, tuple(replace(call, time=call.time - calls[0].time) for call in calls), empty)


def _tokens(text: str) -> int:
    """A whole number, also as 472.0. ValueError."""
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _seconds(text: str) -> float:
    """Seconds, or a date: its fraction may have more digits than Python's dates."""
    try:
        return float(text)
    except ValueError:
        whole, _, rest = text.partition(".")
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        date = datetime.fromisoformat(whole + rest[len(digits) :])
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return date.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _dialogues(path: str, text: str, most: int | None) -> RequestTrace:
    try:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError("it is no list")
        calls: list[Call] = []
        empty = 0
        for entry in entries:
            said = [turn["value"] for turn in entry.get("conversations", entry.get("conversation", []))[:2]]
            if wrong := [value for value in said if not isinstance(value, str)]:
                raise ValueError(f"a value is {wrong[0]!r}, and no text")
            if most is not None and len(calls) == most:
                break
            if len(said) == 2 and all(said):
                calls.append(Call(0.0, 0, 0, texts=(said[0], said[1])))
            else:
                empty += 1
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f'--trace-file {path} is no list of {{"conversations": [{{"value": ..}}, ..]}}: {error!r:.80}'
        ) from None
    return RequestTrace(DIALOGUES, tuple(calls), empty)


def as_fast_as(calls: Sequence[Call], rate: float) -> list[float]:
    """Their times, with the same pattern but `rate` in a second on average."""
    span = calls[-1].time
    if not span:
        raise UsageError("--rate: the trace has no times to be scaled, all its requests come at once")
    return [call.time * len(calls) / rate / span for call in calls]
