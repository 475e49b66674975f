"""The grades of proof, each worth more than the one before it, and the row that every proof is told in."""

from __future__ import annotations

from typing import Any

GRADES = {
    "static": "the changed source was read again by the gate reader",
    "imported": "a fresh process imports it and its conditions let the GPU through",
    "compiled": "FlashInfer's kernel builds for the GPU",
    "active": "the kernel was seen running",
}
RESULTS = {True: "proven", False: "not proven", None: "not tried"}


def graded(grade: str, proven: bool | None, because: list[str], **more: Any) -> dict[str, Any]:
    """One row about one grade of ``GRADES``; ``proven`` None is "not tried", and ``because`` says why."""
    return {
        "grade": grade,
        "proven": proven,
        "result": RESULTS[proven],
        "detail": "; ".join(because),
        "because": because,
        **more,
    }


def all_grades(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the order of the grades, with a "not tried" one for each that is missing; of two, the last counts."""
    rows = {grade: graded(grade, None, [f"would show that {what}"]) for grade, what in GRADES.items()}
    return [*(rows | {row["grade"]: row for row in done}).values()]
