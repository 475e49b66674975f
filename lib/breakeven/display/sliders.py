"""The what-if under sliders, for JupyterLab. A published page has no kernel and shows the static table instead."""

from __future__ import annotations

from typing import Any

from breakeven.costs import whatif
from breakeven.costs.whatif import Change, Point
from breakeven.display import show
from breakeven.errors import UserError

COLUMNS = {
    "change": "change",
    "base_tok_s": "baseline, tok/s",
    "spec_tok_s": "speculation, tok/s",
    "accept_length": "accept length",
    "break_even_accept_length": "AL*",
    "speedup": "speed-up",
}


def what_if(point: Point) -> Any:
    """Three sliders (saved per target forward, saved per cycle's drafting, accept length) over a two-row table."""
    import ipywidgets  # a second to import: only where it is shown

    most_draft_ms = point.draft_ms if point.draft_ms is not None else point.cycle_ms - point.step_ms
    forward_ms = _slider(
        ipywidgets, -0.5 * point.step_ms, 0.95 * point.step_ms, "target forward, ms saved", point.step_ms
    )
    draft_ms = _slider(
        ipywidgets, 0.0, max(most_draft_ms, 0.01), "drafting, ms saved per cycle", max(most_draft_ms, 0.01)
    )
    length = _slider(ipywidgets, 1 - point.accept_length, 3.0, "accept length gained", 3.0)

    def table(forward_ms: float, draft_ms: float, length: float) -> Any:
        change = Change(
            "with these savings",
            verify_saved_ms=forward_ms,
            step_saved_ms=forward_ms,
            draft_saved_ms=draft_ms,
            accept_length_gained=length,
        )
        try:
            rows = whatif.what_if(point, [change])
        except UserError as error:
            return show.words(str(error))
        return show.table(rows, COLUMNS)

    return ipywidgets.interactive(table, forward_ms=forward_ms, draft_ms=draft_ms, length=length)


def _slider(ipywidgets: Any, low: float, high: float, label: str, scale: float) -> Any:
    return ipywidgets.FloatSlider(
        value=0.0,
        min=low,
        max=high,
        step=scale / 100,
        description=label,
        readout_format=".2f",
        continuous_update=False,
        style={"description_width": "14rem"},
        layout={"width": "40rem"},
    )
