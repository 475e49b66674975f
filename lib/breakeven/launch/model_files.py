"""What the files of a model tell without loading it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven.errors import UserError, one_line
from breakeven.hosts import Host

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Model:
    """A model's configuration, vocabulary and size."""

    config: Mapping[str, Any]
    vocabulary: Mapping[str, int]
    """Token to id; empty where the folder has no ``tokenizer.json``."""
    weight_bytes: int
    """In the format that is loaded, and as the files hold them."""

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the configuration that is about the language model."""
        part = self.config.get("text_config")
        return part if part and isinstance(part, dict) else self.config

    def number(self, *names: str) -> int | None:
        """The first of these settings that is there."""
        return next((int(self.text[name]) for name in names if isinstance(self.text.get(name), int)), None)

    @property
    def context(self) -> int | None:
        """Positions that it was made for, stretched as its configuration says."""
        positions = self.number("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")
        scaling = found if isinstance(found := self.text.get("rope_scaling"), dict) else {}
        original = scaling.get("original_max_position_embeddings")
        factor = found if isinstance(found := scaling.get("factor"), int | float) else 1.0
        return int(positions * factor) if positions and 1 < factor < math.inf and original is None else positions

    @property
    def architectures(self) -> list[str]:
        found = self.config.get("architectures")
        return [str(name) for name in found] if isinstance(found, list) else []

    @property
    def has_heads(self) -> bool:
        """Whether its configuration names heads that predict further tokens (NEXTN, MTP)."""
        return any(
            isinstance(value, int) and value > 0 and re.search("nextn|mtp", name) for name, value in self.text.items()
        )

    @property
    def is_eagle3(self) -> bool:
        return any("eagle3" in name.lower() for name in self.architectures)


def read_model(host: Host, folder: Path) -> Model:
    """What the files of a model's folder tell. Raises UserError where its configuration can't be read."""
    config = _read_object(host, folder, "config.json")
    tokenizer = _read_object(host, folder, "tokenizer.json") if host.size(folder / "tokenizer.json") else {}
    model = tokenizer.get("model")
    found = model.get("vocab") if isinstance(model, dict) else None
    vocabulary = found if isinstance(found, dict) else {}
    return Model(config, vocabulary, sum(host.size(folder / name) for name in _weights(host.names(folder))))


def _weights(names: Sequence[str]) -> list[str]:
    """The files that are loaded where a folder holds the same weights in several formats, or joined as well."""
    for format in (".safetensors", ".bin", ".gguf"):
        found = [name for name in names if name.endswith(format) and name != "training_args.bin"]
        if found:
            return [name for name in found if not name.startswith("consolidated")] or found
    return []


def _read_object(host: Host, folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(host.read(folder / name))
    except ConnectionError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} of {host.name} is no model that can be read: {name}: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{folder} of {host.name} is no model that can be read: {name} holds no JSON object")
    return content


def kv_bytes_per_token(model: Model, dtype: str | None) -> float:
    """Bytes of KV cache for one token over all layers: two times heads x width, or MLA's one latent vector."""
    layers = model.number("num_hidden_layers") or 0
    width = _BYTES.get(dtype or "", 2)
    if latent := model.number("kv_lora_rank"):
        return layers * (latent + (model.number("qk_rope_head_dim") or 0)) * width
    heads = model.number("num_attention_heads") or 0
    head = model.number("head_dim") or (model.number("hidden_size") or 0) // max(heads, 1)
    return 2 * layers * (model.number("num_key_value_heads") or heads) * head * width
