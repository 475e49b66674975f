"""The change in sentences, for the command line and the notebook."""

from __future__ import annotations

import shlex
from typing import Any


def explain(change: dict[str, Any]) -> str:
    """What ``patch`` did, in a few sentences: the outcome first, then how to use it and how to take it back."""
    sglang = f"SGLang {change['sglang']['version']}"
    if change["status"] == "refused":
        return f"Refused, nothing was changed: {'; '.join(change['reasons'])}."
    if change["status"] == "already-open":
        return f"Nothing to change: {'; '.join(change['reasons'])}."
    files = len(change["files"])
    places = f"{len(change['edits'])} edit{'s' * (len(change['edits']) != 1)} in {files} file{'s' * (files != 1)}"
    outcome = f"{sglang}: {places} admit {' and '.join(change['admits'])} ({change['verdict_before']} before)."
    if change["dry_run"]:
        return f"{outcome} A dry run: nothing was written."
    if change["mode"] == "overlay":
        use = (
            f"Start the server with PYTHONPATH={change['path']} in front (Python ignores it under -I, -E and -S); the "
            "installed package is untouched."
        )
    else:
        use = f"The files under {change['path']} were changed in place."
    flag = f" ({change['option']})" if change.get("option") else ""
    return f"{outcome} {use} Fusion must still be asked for by its flag{flag}. Take it back: {change['revert']}"


def commands(change: dict[str, Any]) -> str:
    """How to start a server with the change, and how to take it back, as commands."""
    if change["path"] is None:
        return "nothing was written"
    launch = f"python -m sglang.launch_server --model-path MODEL --tp N {change['option'] or ''}".rstrip()
    if change["mode"] == "overlay":
        launch = f'PYTHONPATH={shlex.quote(change["path"])}"${{PYTHONPATH:+:$PYTHONPATH}}" {launch}'
    return f"{launch}\n{change['revert']}"


def findings(change: dict[str, Any]) -> list[str]:
    """What the change means, and what is still open, one sentence each."""
    sentences = [explain(change)]
    if change["status"] == "changed" or change["path"] is not None:
        for grade, said in (("proven", True), ("not proven", False), ("not tried", None)):
            rows = [row for row in change["proof"] if row["proven"] is said]
            if rows:
                sentences.append(
                    f"{grade.capitalize()}: " + "; ".join(f"{row['grade']} ({row['detail']})" for row in rows) + "."
                )
        sentences += [f"{gate['symbol']} ({gate['file']}) was {gate['why']}." for gate in change["left"]]
    if any(row["proven"] for row in change["proof"] if row["grade"] == "active"):
        return sentences
    return [*sentences, "Nothing here says that fusion is faster: only a measurement of both arms does."]
