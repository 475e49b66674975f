"""A verdict in words, as an engineer would say it to a colleague."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

COLUMNS = {
    "id": "gate",
    "result": "result",
    "expression": "condition",
    "because": "because",
    "depends_on": "depends on",
}
_VERDICTS = {
    "runs": "the fused all-reduce runs on {arch}: SGLang lets it through and FlashInfer has the kernel",
    "denied-by-sglang": "SGLang keeps {arch} out of the fused all-reduce, although FlashInfer has a kernel for it",
    "denied-for-the-launch": "with these settings SGLang leaves the fused all-reduce off on {arch}, "
    "and not on account of the GPU alone",
    "denied-by-flashinfer": "SGLang would let {arch} through, but FlashInfer has no kernel for it",
    "denied-by-both": "SGLang keeps {arch} out, and FlashInfer has no kernel for it either",
    "crashes": "SGLang lets {arch} reach the kernel and FlashInfer refuses it: the server crashes there",
    "absent": "this release has no fused all-reduce + RMSNorm",
    "unknown": "whether the fused all-reduce runs on {arch} can not be told: a condition on the way was not understood",
}


def headline(verdict: Mapping[str, Any]) -> str:
    """The verdict in one sentence."""
    releases = f"SGLang {verdict['sglang'].get('version')}"
    if (verdict.get("flashinfer") or {}).get("version"):
        releases += f" with FlashInfer {verdict['flashinfer']['version']}"
    if _one_gpu(verdict):
        return f"{releases}: the fused all-reduce is not used at TP 1, whatever the GPU: one GPU reduces nothing."
    of_the_launch = verdict["verdict"] == "denied-by-sglang" and not verdict["patchable"]
    words = _VERDICTS["denied-for-the-launch" if of_the_launch else verdict["verdict"]]
    return f"{releases}: {words.format(arch=verdict['arch'])}."


def _one_gpu(verdict: Mapping[str, Any]) -> bool:
    return verdict.get("context", {}).get("tp") == 1 and verdict["verdict"].startswith("denied-by-")


def explain(verdict: Mapping[str, Any]) -> str:
    """What was found and which lines decide it, in a few sentences of plain text."""
    sentences = [headline(verdict)]
    if verdict["verdict"] == "absent":
        return sentences[0]
    if "tp" in verdict.get("context", {}).get("assumed", []):
        sentences.append(f"Judged for TP {verdict['context']['tp']}, since none was named.")
    doubtful = [gate for gate in verdict["gates"] if gate["result"] == "unknown"]
    if verdict["verdict"] == "unknown" and doubtful:
        sentences.append(f"Not understood: {'; '.join(_places(doubtful))}.")
    closed = list(_places(gate for gate in verdict["gates"] if gate["result"] == "closed"))
    if closed:
        sentences.append(f"Closed at {'; '.join(closed)}.")
    sentences.append(_switch(verdict))
    if verdict["patchable"]:
        sentences.append("A change to SGLang alone would open it.")
    elif verdict["verdict"] == "denied-by-sglang":
        sentences.append("Letting this GPU through would not open it.")
    elif verdict["verdict"] in ("denied-by-both", "denied-by-flashinfer", "crashes"):
        sentences.append("No change to SGLang helps before FlashInfer brings a kernel for this GPU.")
    if verdict.get("in_front"):
        others = [item["what"] for item in verdict["in_front"] if "ROCm" not in item["what"]]
        sentences.append(f"In front of it on the path: {'; '.join(others)}.")
    return " ".join(filter(None, sentences))


def quote(verdict: Mapping[str, Any]) -> str:
    """The deciding lines as they stand in the source, what is closed first: place, function, result, expression."""
    order = {"closed": 0, "unknown": 1, "depends": 2, "open": 3}
    blocks = [
        f"{gate['file']}:{gate['line']} in {gate['symbol']}: {gate['result']}\n    {gate['expression']}"
        for gate in sorted(verdict["gates"], key=lambda gate: order[gate["result"]])
    ]
    return "\n".join(dict.fromkeys(blocks)) or "no line speaks of it"


def remedies(verdict: Mapping[str, Any]) -> list[str]:
    """What would have to change before fusion runs on this GPU, one sentence each; empty where nothing has to."""
    arch, sentences = verdict["arch"], []
    if verdict["verdict"] in ("runs", "absent", "unknown"):
        return []
    if _one_gpu(verdict):
        return ["The server would have to span at least two GPUs (TP 2)."]
    if verdict["available"] == "no":
        words = verdict["flashinfer"].get("words") or "it has no such kernel"
        sentences.append(
            f"FlashInfer {verdict['flashinfer']['version']} would have to build the kernel for {arch} ({words})."
        )
    on_the_way = [gate for gate in verdict["gates"] if gate["package"] == "sglang" and "auto" not in gate["id"]]
    for place in _places(gate for gate in on_the_way if gate["result"] == "closed"):
        sentences.append(f"SGLang would have to let {arch} through at {place}.")
    if verdict["auto_enabled"] == "no" and verdict.get("option"):
        sentences.append(f"Fusion would still have to be asked for: {verdict['option']}.")
    return sentences


def _places(gates: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Each place once: two paths may pass through the same line."""
    seen = set()
    for gate in gates:
        place = f"{PurePosixPath(gate['file']).name}:{gate['line']} ({gate['expression']})"
        if place not in seen:
            seen.add(place)
            yield place


def _switch(verdict: Mapping[str, Any]) -> str:
    if verdict["auto_enabled"] == "yes":
        return "SGLang switches it on by itself."
    if verdict["auto_enabled"] == "depends":
        return "Whether SGLang switches it on by itself depends on the launch."
    if verdict["verdict"] == "runs" and verdict.get("flag"):
        return f"It has to be asked for: {verdict.get('option') or verdict['flag']}."
    return ""
