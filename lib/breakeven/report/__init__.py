"""The published pages of a run, its comparison with another one, the PDF. Reads a run's files, measures nothing."""

from breakeven.report.publishing import publish, publish_index
from breakeven.report.run_files import read_run

__all__ = [
    "publish",
    "publish_index",
    "read_run",
]
