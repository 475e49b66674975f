"""What others have reported about fusion on SM12x: neither measured nor checked by this suite, and said so."""

from __future__ import annotations

from typing import Any

_REPORTED: list[dict[str, Any]] = [
    {
        "setting": "TP2, two RTX PRO 6000 (PCIe), DeepSeek-V4-Flash with MTP, SGLang",
        "reported": "126.25 to 132.85 tok/s, +5.2 % (medians of 5 runs of 30 s)",
        "for_or_against": "for",
        "caveat": "single runs lie between 119 and 140 tok/s: the arms overlap",
        "tensor_parallel": 2,
        "gain_percent": [5.2, 5.2],
        "source": "https://github.com/sgl-project/sglang/pull/30700",
    },
    {
        "setting": "TP2, RTX PRO 6000, vLLM, concurrency 1 to 32",
        "reported": "decode +5.2 % at concurrency 1, falling to +2.2 % at 32",
        "for_or_against": "for",
        "caveat": "one run a cell; the reporter later saw up to 6.9 % between runs of one server: within noise",
        "tensor_parallel": 2,
        "gain_percent": [2.15, 5.18],
        "source": "https://github.com/flashinfer-ai/flashinfer/pull/3903",
    },
    {
        "setting": "TP4, one box with PCIe only, SGLang",
        "reported": "a substantial regression, gone when fusion was disabled again",
        "for_or_against": "against",
        "caveat": "no figure given; a proposal that SGLang choose it by itself was withdrawn for this reason",
        "tensor_parallel": 4,
        "gain_percent": None,
        "source": "https://github.com/sgl-project/sglang/pull/32330",
    },
    {
        "setting": "TP8, RTX PRO 6000 (PCIe)",
        "reported": "about nothing",
        "for_or_against": "neither",
        "caveat": "hearsay, without a figure or a page to point at",
        "tensor_parallel": 8,
        "gain_percent": [0.0, 0.0],
        "source": None,
    },
    {
        "setting": "SM12x with FlashInfer before 0.6.17",
        "reported": "no kernel, and the server dies in CUDA-graph capture: 'No supported CUDA architectures found for "
        "major versions [9, 10]'",
        "for_or_against": "against",
        "caveat": "reported for 0.5.3; the list was read in the releases: 9 and 10 up to 0.6.16, 12 too from 0.6.17",
        "tensor_parallel": None,
        "gain_percent": None,
        "source": "https://github.com/sgl-project/sglang/issues/15650",
    },
    {
        "setting": "SM120 without NVLink, SGLang from 0.5.15",
        "reported": "admitted by the architecture alone, fusion is given up again: the workspace preflight asks for "
        "multicast, which such cards lack",
        "for_or_against": "against",
        "caveat": "the change made here covers that preflight; not tried on such a card",
        "tensor_parallel": 2,
        "gain_percent": None,
        "source": "https://github.com/sgl-project/sglang/pull/32330",
    },
]


def evidence() -> list[dict[str, Any]]:
    """Public reports, one dict each, all with the ``label`` "reported".

    ``setting``, ``reported`` (the effect, in words), ``for_or_against`` ("for", "against", "neither"), ``caveat``,
    ``tensor_parallel`` (GPUs, or None), ``gain_percent`` ([low, high] of the decode rate, or None), ``source`` (a
    public address, or None).
    """
    return [{"label": "reported", **row} for row in _REPORTED]
