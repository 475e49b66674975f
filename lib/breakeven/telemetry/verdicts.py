"""From what is known about one start of a server to its failure class: the second half of ``failures``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache

from breakeven.telemetry.failure_rules import RULES
from breakeven.telemetry.log_lines import seconds_between
from breakeven.telemetry.releases import version_key
from breakeven.telemetry.rule import (
    CAUSE,
    DRAFTER_ADVICE,
    NCCL_ADVICE,
    NCCL_DEFAULT_ADVICE,
    PHASE_ADVICE,
    SYMPTOM,
    UNKNOWN_ADVICE,
    Rule,
    flags,
)

NOT_WORKING_BELOW = 1.02  # accept length at which no draft is ever accepted
NOT_WORKING_LINES = 2  # decode lines (40 cycles each) that it takes to say so
HUNG_AFTER_S = 60.0  # health answers for this long after the last step of a request under way
PAUSE_S = 60.0  # steps that far apart belong to different requests: a log has one of every 40 decode steps


@dataclass(frozen=True)
class Evidence:
    """A line of the log: its number, text and rank as logged (``TP2``)."""

    line: int
    text: str
    rank: str | None


@dataclass(frozen=True)
class Candidate:
    """A line that a rule fits, with the class that the rule had at that moment."""

    rule: Rule
    cls: str
    seen: Evidence
    raised: bool  # an exception's own line, not something that was merely said

    @property
    def order(self) -> tuple[int, bool, int]:
        """Lower decides: the stronger level, an exception before what may be a warning, then the earlier line."""
        return -self.rule.level, self.rule.level == CAUSE and not self.raised, self.seen.line


@dataclass(frozen=True)
class Failure:
    """``cls`` names the class, ``line`` (from 1) and ``text`` the deciding log line, ``rank`` as logged (``TP2``)."""

    cls: str
    line: int | None
    text: str
    advice: str
    rank: str | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        """As `breakeven logs --json` shows it, with the key ``class``."""
        values = asdict(self)
        return {"class": values.pop("cls"), **values}


@dataclass
class Fate:
    """What is known about one start of the server; a second start in the same file begins a new one."""

    rank: str | None = None  # of the last line that named one
    time: str | None = None
    best: Candidate | None = None
    last_error: Evidence | None = None
    nccl_warn: Evidence | None = None  # the first one of any rank
    capture_failed: bool = False
    dead: bool = False  # something said that a process of the server is gone
    ready: bool = False
    stopping: bool = False  # someone stopped it when it was ready
    phases: dict[str | None, str] = field(default_factory=dict)  # rank -> load | capture
    decode: Evidence | None = None  # last decode line
    accept_lines: int = 0
    accept_max: float = 0.0
    stepped: str | None = None  # time stamp of the last step
    burst: str | None = None  # time stamp of the first step since there was a pause
    answered: str | None = None  # time stamp of the last answer: its end, or its beginning where it was streamed
    under_way: str | None = None  # time stamp of the last step of a request that was not answered yet
    health_after: Evidence | None = None  # last health answer since
    health_count: int = 0

    @property
    def stuck(self) -> bool:
        """Whether what is wrong is that nothing gets on, which no answer of another process refutes."""
        return self.best is not None and self.best.cls in ("hang", "not-ready")

    def survive(self) -> None:
        """It went on: what was complained about before did no harm, unless one of its processes died."""
        if not self.dead:
            self.best = self.last_error = None

    def step(self) -> None:
        """A batch ran, at ``time``."""
        pause = seconds_between(self.stepped, self.time)
        if pause is None or pause >= PAUSE_S:
            self.burst = self.time
        self.stepped = self.under_way = self.time
        self.health_after, self.health_count = None, 0


@lru_cache(maxsize=4096)  # a dying server repeats itself, rank by rank and thread by thread
def rule_for(lowered: str) -> Rule | None:
    """The first rule that fits a line of text in lower case."""
    return next((rule for rule in RULES if rule.pattern.search(lowered)), None)


def verdict(
    fate: Fate, *, sglang_version: str | None = None, exit_code: int | None = None, signal: int | None = None
) -> Failure | None:
    """What a fate, and the process's end where it is known, amount to; None when nothing failed."""
    found = _decide(fate, exit_code, signal)
    if found is None:
        return None
    cls, seen, advice = found
    fields = flags(version_key(sglang_version) if sglang_version else None)
    if isinstance(seen, str):
        return Failure(cls, None, seen, advice.format_map(fields))
    return Failure(cls, seen.line, seen.text, advice.format_map(fields), seen.rank)


_Verdict = tuple[str, Evidence | str, str]  # class, the deciding line or what stands for it, advice


def _decide(fate: Fate, exit_code: int | None, signal: int | None) -> _Verdict | None:
    """Strongest evidence first: a cause, how the process ended, an error of no class, a consequence, silence."""
    if signal is None and exit_code is not None and (exit_code < 0 or exit_code > 128):
        signal = -exit_code if exit_code < 0 else exit_code - 128
    best = fate.best
    if best and best.rule.level >= SYMPTOM:
        return _nccl(fate, best) if best.cls.startswith("nccl") else _caused(fate, best)
    if best and best.cls.startswith("nccl") and fate.nccl_warn:
        return _nccl(fate, best)
    if fate.stopping:
        return _drafter(fate)
    if signal in (6, 7, 9, 11) or (signal and not fate.ready):
        return _by_signal(signal)
    if fate.dead and fate.ready and fate.health_after:
        return _looks_alive(fate)
    if fate.last_error and not (best and best.cls == "killed"):
        return "unknown", fate.last_error, UNKNOWN_ADVICE
    if best:
        advice = UNKNOWN_ADVICE if best.cls == "unknown" else best.rule.advice
        return best.cls, best.seen, advice or NCCL_DEFAULT_ADVICE
    if fate.nccl_warn and (fate.dead or exit_code):
        return "unknown", fate.nccl_warn, UNKNOWN_ADVICE
    if exit_code is not None and (exit_code or not fate.ready) and not signal:
        cls = "unknown" if fate.ready else "exited-early"
        return cls, f"the process ended with exit code {exit_code}", _advice_of("exit*")
    return _drafter(fate) or _hung(fate)


def _caused(fate: Fate, best: Candidate) -> _Verdict:
    cls, advice = best.cls, best.rule.advice
    if best.rule.cls == "oom-at-*":
        if fate.capture_failed and not fate.ready:
            cls = "oom-at-capture"
        advice = advice or PHASE_ADVICE[cls.removeprefix("oom-at-")]
    return cls, best.seen, UNKNOWN_ADVICE if cls == "unknown" else advice


def _nccl(fate: Fate, best: Candidate) -> _Verdict:
    """The failing call is where it was noticed; the first NCCL WARN of any rank is where it began."""
    cls = "nccl-in-capture" if fate.capture_failed else best.cls
    if fate.nccl_warn is None:
        return cls, best.seen, best.rule.advice or NCCL_DEFAULT_ADVICE
    text = fate.nccl_warn.text
    advice = next((advice for pattern, advice in NCCL_ADVICE if pattern.search(text)), NCCL_DEFAULT_ADVICE)
    return cls, fate.nccl_warn, advice


def _by_signal(signal: int) -> _Verdict:
    rule = rule_for("sigterm" if signal == 15 else f"exit code {-signal}") or RULES[-1]
    cls = "killed" if rule.cls == "exit*" else rule.cls
    return cls, f"the process was ended by signal {signal}", rule.advice


def _looks_alive(fate: Fate) -> _Verdict | None:
    """Health answers of a server whose processes are gone, for no reason that is known."""
    if fate.health_after is None:
        return None
    last = f" Last error, line {fate.last_error.line}: {fate.last_error.text}" if fate.last_error else ""
    return "not-ready", fate.health_after, _advice_of("not-ready") + last.replace("{", "{{").replace("}", "}}")


def _drafter(fate: Fate) -> _Verdict | None:
    if fate.decode and fate.accept_lines >= NOT_WORKING_LINES and fate.accept_max <= NOT_WORKING_BELOW:
        return "drafter-not-working", fate.decode, DRAFTER_ADVICE
    return None


def _hung(fate: Fate) -> _Verdict | None:
    """No error anywhere, but a request that never ends while /health answers.

    A streamed answer is logged when it begins: with one about, nobody can tell whether the steps since were its own.
    """
    if fate.health_after is None or fate.health_count < 3:
        return None
    waited = seconds_between(fate.under_way, fate.time)
    if waited is None or waited < HUNG_AFTER_S:
        return None
    before = seconds_between(fate.answered, fate.burst)
    if fate.answered and (before is None or before < PAUSE_S):
        return None
    return "not-ready", fate.health_after, _advice_of("not-ready")


def _advice_of(cls: str) -> str:
    return next(rule.advice for rule in RULES if rule.cls == cls)
