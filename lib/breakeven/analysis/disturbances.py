"""Requests that something else on the machine slowed down."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from breakeven.stats.samples import usable

DISTURBED = 1.5
"""Times the median of its launch that a request's cycle may take; more is a disturbance."""


def disturbed(samples: pd.DataFrame) -> pd.DataFrame:
    """Requests whose milliseconds per cycle stand out among those of their launch, by ``ratio`` to the median."""
    good = usable(samples)
    counted = pd.to_numeric(good["verify_ct"]).fillna(good["completion_tokens"] - 1)
    cycle_ms = 1000 * good["decode_s"] / counted
    ratio = cycle_ms / cycle_ms.groupby([good["cell"], good["restart"]]).transform("median")
    return good.assign(ratio=ratio)[ratio > DISTURBED].sort_values("ratio", ascending=False)


def calm(samples: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The samples without the prompts of a restart in which a request of any cell was disturbed, taken from all cells
    alike; and how many such prompts there were."""
    wild = disturbed(samples)
    lost = set(zip(wild["restart"], wild["prompt_id"], strict=True))
    keep = [pair not in lost for pair in zip(samples["restart"], samples["prompt_id"], strict=True)]
    return samples[keep], len(lost)


def warnings(samples: pd.DataFrame) -> Iterable[dict[str, str]]:
    """The doubt that they cast, as `cautions.warn` has it; the worst three are named."""
    wild = disturbed(samples)
    if len(wild):
        shown = [
            f"{row['cell']}, restart {row['restart'] + 1}, prompt {row['prompt_id']} {row['ratio']:.1f} times"
            for row in wild.head(3).to_dict("records")
        ]
        more = f", and {len(wild) - 3} more" if len(wild) > 3 else ""
        text = (
            f"requests that ran much slower per cycle than the median of their launch: {'; '.join(shown)}{more}. "
            "Something else ran meanwhile: such a cell looks slower than it is, above all for that kind of prompt"
        )
        yield {"code": "disturbed-requests", "text": text}
