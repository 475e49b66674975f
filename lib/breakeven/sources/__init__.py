"""Source trees of SGLang and FlashInfer: found, fetched, unpacked. Knows nothing of what is read in them."""

from breakeven.sources.trees import Source, lying_beside, open_source, pinned_flashinfer, python_files

__all__ = [
    "Source",
    "lying_beside",
    "open_source",
    "pinned_flashinfer",
    "python_files",
]
