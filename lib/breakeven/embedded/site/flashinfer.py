"""Stands before FlashInfer where there is no CUDA: SGLang tries to import it, uses none of it and waits 1 s for it."""

raise ImportError("FlashInfer is kept out of the embedded CPU engine: it has CUDA kernels only")
