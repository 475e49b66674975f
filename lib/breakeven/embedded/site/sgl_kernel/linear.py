"""Matrix products with a weight that was laid out for oneDNN once, instead of at every call.

PyTorch's bf16 ``linear`` hands oneDNN the weight as the checkpoint has it. oneDNN wants blocks, and at 1 to 8 rows,
where the time goes into reading the weight, the plain layout costs a third of it. Where tried, the results are the
same bits.

SGLang has the place for it: a layer whose ``use_intel_amx_backend`` is set goes through ``weight_packed_linear``
(``sglang/srt/layers/quantization/unquant.py`` and ``logits_processor.py``).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

PACKED = "packed_for_onednn"
TAKES_PACKED = "use_intel_amx_backend"
packed_linear = torch.ops.mkldnn._linear_pointwise.default
packed_linear_and = torch.ops.mkldnn._linear_pointwise.binary


def pack(layer: nn.Module) -> None:
    """Lay out ``layer.weight`` [out, in] for oneDNN, beside the original, and send the layer's calls to the packed one.

    Only bf16 gains (oneDNN's float32 products at one row are slower than the plain ones), and only on a CPU for which
    oneDNN has bf16 code (AVX-512); elsewhere the layer stays as it is.
    """
    weight = layer.get_parameter("weight")
    if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        setattr(weight, PACKED, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None))
        setattr(layer, TAKES_PACKED, True)


def weight_packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    """``rows`` [tokens, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]: [tokens, out].

    The packed weight travels with the parameter, so a drafter that takes over its target's head takes it along; a
    parameter without one gets the plain product. ``is_vnni`` names a layout of SGLang's own kernel and means nothing
    here.
    """
    packed = getattr(weight, PACKED, None)
    if packed is None or rows.dtype != torch.bfloat16:
        return linear(rows, weight, bias)
    return packed_linear(rows, packed, bias, "none", [], "")


def linear_plus(rows: Tensor, weight: Tensor, addend: Tensor) -> Tensor:
    """``rows`` times ``weight`` transposed, plus ``addend`` [tokens, out]: one operation where the weight is packed."""
    packed = getattr(weight, PACKED, None)
    if packed is None or rows.dtype != torch.bfloat16:
        return linear(rows, weight) + addend
    return packed_linear_and(rows, addend, packed, None, "add")
