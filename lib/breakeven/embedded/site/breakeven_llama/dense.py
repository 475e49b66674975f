"""Llama as target and as drafter. ``EntryClass`` is the name that SGLang's model registry reads."""

from typing import Any

from sglang.srt.models.llama import LlamaForCausalLM as SGLangLlama
from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

from .lean import LeanLlamaModel


class LlamaForCausalLM(SGLangLlama):
    """SGLang's Llama with the lean forward pass; the registry goes by the class's name."""

    def _init_model(self, config: Any, quant_config: Any = None, prefix: str = "") -> LeanLlamaModel:
        return LeanLlamaModel(config, quant_config=quant_config, prefix=prefix)


EntryClass = [LlamaForCausalLM, LlamaForCausalLMEagle, LlamaForCausalLMEagle3]
