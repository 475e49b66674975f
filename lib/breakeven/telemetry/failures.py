"""Why a server ended: one pass over its log, in bounded memory, to a failure class with the line that decides.

A log that ends badly and fits no class is ``unknown`` with its last error, never a guess; a log that simply ends, or
ends because someone stopped a server that was ready, is no failure. Errors that the server survived (it went on to
decode) do not count. The table of classes is in ``failure_rules``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from breakeven.telemetry.failure_rules import (
    BENIGN,
    BENIGN_NCCL_WARN,
    FRAME_RULES,
    HOUSEKEEPING_WORDS,
    JUDGED_WORDS,
    SURVIVED,
)
from breakeven.telemetry.log_lines import CONTROL, HEADER, clean, pieces
from breakeven.telemetry.rule import CONSEQUENCE, ERROR, Rule
from breakeven.telemetry.verdicts import Candidate, Evidence, Failure, Fate, rule_for, verdict

__all__ = ["Classifier", "Failure", "classify"]

MAX_TEXT = 500  # characters of a log line kept as evidence
MAX_FRAME = 12  # lines kept of a traceback's last frame
MAX_JUDGED = 4000  # characters of a log line looked at, half from each end: command lines can be megabytes

_OTHER_RANK = re.compile(r"\[rank(\d+)\]|\[(\d+)\] NCCL ")
# SGLang prints this behind every exit code, also behind those that are not -9
_HINT = re.compile(r"If exit code is -9.*|a common cause is the os oom killer.*", re.IGNORECASE)
_NAME = r"(?-i:(?:[A-Za-z_]\w*\.)*(?:\w+Error|\w*(?:Exception|Interrupt|Timeout|Exit))(?=:\s|$))"
_EXCEPTION = re.compile(
    rf"(?:^|[\s:\]|]){_NAME}|fatal python error|terminate called|assertion .* failed|with error: |(?:^|\] )\W*error:",
    re.IGNORECASE,
)
# a line that is an exception's own: behind its traceback, a rank, or what a launcher puts before every line
_RAISED = re.compile(rf"(?:^|\]:? +|\) +|\| *| - ){_NAME}|capture .*graph failed", re.IGNORECASE)
_NO_ERROR = re.compile(  # what follows on an end, or only announces an error
    r"\b(CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|EOFError|ConnectionResetError|ProcessExit)\b"
    r"|Traceback \(most recent call last\):$"
)
_FRAME = re.compile(r'  File "[^"]+", line \d+')
_RAISES = re.compile(r"^\W*raise [A-Za-z_][\w.]*(\(|$)")
_NCCL_WARN = re.compile(r"NCCL WARN\s*(.*)")
_GRAPH_PHASE = re.compile(r"^(?!.*fail).*capture\b.*\bgraph\b.*\b(begin|end)\b", re.IGNORECASE)
_CAPTURING = re.compile(r"capturing batches|graph_runner\.py|capture cuda graph failed", re.IGNORECASE)
_STARTED = re.compile(r"uvicorn running|application startup complete|fired up and ready", re.IGNORECASE)
_START_STEP = re.compile(r"load weight (begin|end)|kv cache is allocated|memory pool end|max_total_num_tokens=")
_DEATH = re.compile(
    r"hit an exception|sigquit|with exit code|is dead\b|died during|warmup error|(exited|terminated|died|crashed) with"
    r"|initialization failed\. ",
    re.IGNORECASE,
)
_STOP = re.compile(
    r"\bSIGTERM\b|gracefully exiting|INFO:\s+shutting down|KeyboardInterrupt|finished server process", re.I
)
_SURVIVABLE = re.compile(r"exception in asgi application|exception ignored in", re.IGNORECASE)
_ACCEPT = re.compile(r"(?<!block )accept len:\s*(\d+(?:\.\d+)?)")
_HEALTH_OK = re.compile(r'"GET /health\S* HTTP/[\d.]+" 200')
_ANSWERED = re.compile(r'"POST /\S* HTTP/[\d.]+" ([1-5])\d\d\b')
_VERSION = re.compile(r"\bsglang(?:[-=\s]+|\s+version:?\s*)v?(\d+\.\d+\.\d+(?:\.post\d+)?)\b", re.IGNORECASE)


def _one_search(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of the words, as a trie: five times faster over a long log than the plain alternatives."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        if "" in node:
            return ""
        return "(?:" + "|".join(re.escape(letter) + pattern(rest) for letter, rest in sorted(node.items())) + ")"

    return re.compile(pattern(root))


_ANY_WORD = _one_search(HOUSEKEEPING_WORDS + JUDGED_WORDS)


def classify(
    lines: Iterable[str], *, sglang_version: str | None = None, exit_code: int | None = None, signal: int | None = None
) -> Failure | None:
    """The failure class of a server's log lines (in file order, any number), or None when nothing failed.

    ``exit_code`` and ``signal`` are those of the server's process where they are known: a negative code, or one above
    128, is a signal. ``sglang_version`` makes the advice name the flags of that release.
    """
    classifier = Classifier(sglang_version)
    for number, text in enumerate(lines, 1):
        for piece in pieces(text):
            classifier.feed(number, piece)
    return classifier.result(exit_code=exit_code, signal=signal)


class Classifier:
    """``classify`` for a caller that streams the lines itself: ``feed`` each, then ask for the ``result``."""

    def __init__(self, sglang_version: str | None = None) -> None:
        self.sglang_version = sglang_version
        self._fate = Fate()
        self._skipping = False  # inside a traceback that the server survives
        self._frame: list[str] = []  # the last frame of the traceback under way: its file line and its source
        self._frame_column: int | None = None  # where its "  File" stood
        self._capture_seen = -(10**9)  # number of the last line that spoke of graph capture

    def feed(self, number: int, raw: str) -> None:
        """Take in one line (or a piece of one). Numbers start at 1 and never fall."""
        if "Decode batch" in raw or "Prefill batch" in raw:
            self._step(number, raw)
            return
        if len(raw) > MAX_JUDGED:
            raw = f"{raw[: MAX_JUDGED // 2]} {raw[-MAX_JUDGED // 2 :]}"
        lowered = raw.lower()
        if not self._skipping and self._frame_column is None and not _ANY_WORD.search(lowered):
            return
        judged = any(word in lowered for word in JUDGED_WORDS)
        text = CONTROL.sub("", raw)
        if self._source_of_a_frame(text):
            if _CAPTURING.search(text):
                self._capture_seen = number
            return
        text = text.strip()
        frame = ""
        if header := HEADER.search(text):
            self._fate.rank, self._fate.time = header["rank"].strip() or None, header["time"]
            self._skipping = False
        else:  # the end of a traceback; another rank's line may stand between two lines of one
            frame, self._frame, self._frame_column = " ".join(self._frame), [], None
        if "server_args=ServerArgs(" in text or "server_args={" in text:
            self._fate = Fate(rank=self._fate.rank, time=self._fate.time)
            return
        if self._housekeeping(number, text) or self._skipping or not judged or BENIGN.search(text):
            return
        if not self._fate.stopping:
            self._judge(number, _HINT.sub("", text).strip(), frame)

    def _source_of_a_frame(self, text: str) -> bool:
        """A traceback's file and source lines: code that speaks of errors is no error."""
        if frame := _FRAME.search(text):
            self._frame, self._frame_column = [text[:MAX_TEXT]], frame.start()
            return True
        if _RAISES.search(text):  # its frame may have been cut off, or stand in another stream
            return True
        if self._frame_column is None or not text[self._frame_column :].startswith("    "):
            return False
        if len(self._frame) < MAX_FRAME:
            self._frame.append(text[self._frame_column :][:MAX_TEXT])
        return True

    def _step(self, number: int, text: str) -> None:
        """A batch ran: whatever was complained about before, the server survived, unless one of its processes died."""
        fate = self._fate
        fate.ready = True
        self._skipping = False
        if header := HEADER.search(text):
            fate.rank, fate.time = header["rank"].strip() or None, header["time"]
        fate.step()
        fate.survive()
        if not fate.dead:
            fate.nccl_warn = None
        if "Decode batch" in text:
            text = clean(text)
            fate.decode = Evidence(number, text[:MAX_TEXT], fate.rank)
            if found := _ACCEPT.search(text):
                fate.accept_lines += 1
                fate.accept_max = max(fate.accept_max, float(found[1]))

    def _housekeeping(self, number: int, text: str) -> bool:
        """Phases, requests, stops. True when the line says nothing more."""
        fate = self._fate
        if found := _VERSION.search(text):
            self.sglang_version = self.sglang_version or found[1]
        if _CAPTURING.search(text):
            self._capture_seen = number
        if found := _GRAPH_PHASE.search(text):
            fate.phases[fate.rank] = "capture" if found[1].lower() == "begin" else "load"
            fate.survive()
            return True
        if _STARTED.search(text) or (_START_STEP.search(text) and not fate.dead):
            fate.ready = fate.ready or bool(_STARTED.search(text))
            fate.survive()
            return True
        if found := _ANSWERED.search(text):
            fate.under_way = None
            if found[1] == "2":
                fate.answered = fate.time
            if found[1] == "2" or (found[1] == "4" and not fate.stuck):  # a request that was refused did no harm
                fate.survive()
            return True
        if _HEALTH_OK.search(text):
            if not fate.dead:
                fate.last_error = None
            fate.health_after = Evidence(number, text[:MAX_TEXT], fate.rank)
            fate.health_count += 1
            return True
        if _SURVIVABLE.search(text):
            self._skipping = True
            return True
        if fate.ready and not fate.dead and not fate.stuck and _STOP.search(text):
            fate.stopping, fate.best, fate.last_error = True, None, None
            return True
        return False

    def _judge(self, number: int, text: str, frame: str) -> None:
        """Weigh a line that may be the cause. ``frame`` is the last one of the traceback that it ends, if any."""
        raised = bool(_RAISED.search(text))
        if not raised and SURVIVED.search(text):
            return
        fate = self._fate
        if "capture cuda graph failed" in text.lower():
            fate.capture_failed = True
        if _DEATH.search(text):
            fate.dead = True
            fate.health_after = None
        seen = Evidence(number, text[:MAX_TEXT], self._rank_of(text))
        warn = _NCCL_WARN.search(text)
        if warn and "out of memory" not in text.lower():
            if fate.nccl_warn is None and not BENIGN_NCCL_WARN.search(warn[1]):
                fate.nccl_warn = seen
            return
        rule = rule_for(text.lower())
        is_error = bool(_EXCEPTION.search(text)) and not _NO_ERROR.search(text)
        if frame and raised and is_error and not fate.ready and (rule is None or rule.level < ERROR):
            whole = f"{frame} {text}".lower()
            rule = next((by_frame for by_frame in FRAME_RULES if by_frame.pattern.search(whole)), rule)
        if rule:
            candidate = Candidate(rule, self._class_now(rule, number, text), seen, raised)
            if fate.best is None or candidate.order < fate.best.order:
                fate.best = candidate
        if is_error and (rule is None or rule.level > CONSEQUENCE):
            fate.last_error = seen

    def _rank_of(self, text: str) -> str | None:
        if found := _OTHER_RANK.search(text):
            return f"rank{found[1] or found[2]}"
        return self._fate.rank

    def _phase(self, number: int, text: str) -> str:
        if self._fate.ready:
            return "run"
        if "captur" in text.lower() or number - self._capture_seen < 80:  # a traceback through the graph runner
            return "capture"
        return self._fate.phases.get(self._fate.rank, "load")

    def _class_now(self, rule: Rule, number: int, text: str) -> str:
        if rule.cls == "oom-at-*":
            return f"oom-at-{self._phase(number, text)}"
        if rule.cls == "nccl*":
            return "nccl-in-capture" if self._phase(number, text) == "capture" else "nccl"
        if rule.cls == "fault*":
            return "unknown" if self._phase(number, text) == "capture" else "config"
        if rule.cls == "exit*":
            return "unknown" if self._fate.ready else "exited-early"
        return rule.cls

    def result(self, *, exit_code: int | None = None, signal: int | None = None) -> Failure | None:
        """What the lines so far, and the process's end where it is known, amount to."""
        return verdict(self._fate, sglang_version=self.sglang_version, exit_code=exit_code, signal=signal)
