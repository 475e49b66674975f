"""Matrix products: by the compiled kernels at few rows, else with a weight laid out for oneDNN once, not at every call.

PyTorch's bf16 ``linear`` hands oneDNN the weight as the checkpoint has it. oneDNN wants blocks, and at 1 to 8 rows,
where the time goes into reading the weight, the plain layout costs a third of it. Where tried, the results are the
same bits. The compiled kernels read the plain layout, in two thirds of oneDNN's time with blocks.

SGLang has the place for it: a layer whose ``use_intel_amx_backend`` is set goes through ``weight_packed_linear``
(``sglang/srt/layers/quantization/unquant.py`` and ``logits_processor.py``).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from . import compiled

PACKED = "packed_for_onednn"
TAKES_PACKED = "use_intel_amx_backend"
packed_linear = torch.ops.mkldnn._linear_pointwise.default
packed_linear_and = torch.ops.mkldnn._linear_pointwise.binary


def pack(layer: nn.Module) -> None:
    """Lay out ``layer.weight`` [out, in] for oneDNN, beside the original, and send the layer's calls to this module.

    Only bf16 gains (oneDNN's float32 products at one row are slower than the plain ones). oneDNN has bf16 code for CPUs
    with AVX-512; without that, and without compiled kernels, the layer stays as it is.
    """
    weight = layer.get_parameter("weight")
    if weight.dtype != torch.bfloat16:
        return
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        setattr(weight, PACKED, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None))
    if hasattr(weight, PACKED) or compiled.active:
        setattr(layer, TAKES_PACKED, True)


def weight_packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    """``rows`` [tokens, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]: [tokens, out].

    The packed weight travels with the parameter, so a drafter that takes over its target's head takes it along; a
    parameter without one gets the plain product. ``is_vnni`` names a layout of SGLang's own kernel and means nothing
    here.
    """
    if compiled.active and bias is None and compiled.active[0].fits(rows, weight):
        return compiled.active[0].product(rows, weight)
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
