"""The import path that SGLang's NGRAM worker uses: ``sgl_kernel.speculative``."""

from .tree import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
