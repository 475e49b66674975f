"""The draft tree: built from the drafter's picks, or read back from a mask, and walked by greedy verification.

A request's tree has ``n`` nodes (SGLang's ``--speculative-num-draft-tokens``); node 0 is the last committed token.
SGLang keeps it as three arrays [bs, n]: ``retrieve_index`` (the node's row in the flat batch, i * n + node),
``retrieve_next_token`` (its first child) and ``retrieve_next_sibling`` (the next child of its parent), -1 for none.
SGLang spells the first word of those names ``retrive`` in the keywords of one operation, and so does this module there.

The contracts are those of SGLang's Triton twins in ``sglang/kernels/ops/speculative``: ``spec_tree.py`` and
``reconstruct_tree.py``. A tree has 2 to 64 nodes, so lists of Python integers are faster here than tensor operations.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from .missing import explain

FULL_MASK, QLEN_ONLY = 0, 1  # sglang.kernels.ops.speculative.spec_tree.TreeMaskMode
NONE = -1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Build the trees of a batch from the candidates that the drafter selected.

    A candidate's index is ``topk * slot + choice``: choice number ``choice`` of the parent in ``slot``. Slot 0 is the
    root; slot s > 0 is the candidate with index ``parent_list[i, s]``. ``selected_index`` [bs, n - 1] holds the
    candidates kept, in the order of the nodes 1..n-1. Written in place: ``positions`` [bs * n] (committed length plus
    depth in the tree), the three arrays of the tree, and ``tree_mask``, where node a sees node b if b is a or one of
    its ancestors within ``depth``. The mask is flat: n x n per request (QLEN_ONLY), or n x (seq_len + n) (FULL_MASK),
    of which the first seq_len columns are the caller's.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(explain(f"build_tree_kernel_efficient_cpu with tree_mask_mode {int(tree_mask_mode)}"))
    n = draft_token_num
    seq_lens = verified_seq_len.tolist()
    trees = [
        _parents(picks, parents, topk)
        for picks, parents in zip(selected_index.tolist(), parent_list.tolist(), strict=True)
    ]
    paths = [[_path(tree, node, depth) for node in range(n)] for tree in trees]
    _write(positions, [length + len(path) - 1 for length, tree in zip(seq_lens, paths, strict=True) for path in tree])
    _write(retrieve_index, range(len(trees) * n))
    _write(retrieve_next_token, [child for tree in trees for child in _first_children(tree)])
    _write(retrieve_next_sibling, [sibling for tree in trees for sibling in _next_siblings(tree)])

    flat, offset = tree_mask.view(-1), 0
    for length, tree in zip(seq_lens, paths, strict=True):
        width = n + (length if int(tree_mask_mode) == FULL_MASK else 0)
        rows = [[node in path for node in range(n)] for path in tree]
        flat[offset : offset + n * width].view(n, width)[:, width - n :] = torch.tensor(rows)
        offset += n * width


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's greedy choices down each tree until no child carries the token that the target chose.

    ``candidates`` [bs, n]: the nodes' tokens; ``target_predict`` [bs, n] or flat: the target's choice after each node.
    Written in place: ``accept_index`` [bs, steps + 1], the flat rows of the accepted path from the root on (what
    follows stays as it was); ``accept_token_num`` [bs], the accepted nodes without the root; ``predicts`` [bs * n],
    the target's choice at each node of the path.
    """
    rows, next_token, next_sibling = retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist()
    target, tokens = target_predict.reshape(-1).tolist(), candidates.tolist()
    walked: list[int] = []
    for i, row in enumerate(rows):
        node, path = 0, [row[0]]
        while len(path) < accept_index.shape[1]:
            child = next_token[i][node]
            while child != NONE and tokens[i][child] != target[row[node]]:
                child = next_sibling[i][child]
            if child == NONE:
                break
            node = child
            path.append(row[node])
        accept_index[i, : len(path)] = torch.tensor(path)
        accept_token_num[i] = len(path) - 1
        walked += path
    predicts[torch.tensor(walked)] = torch.tensor([target[row] for row in walked], dtype=predicts.dtype)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Read the trees of a batch back from their masks (NGRAM's table returns a mask and no links).

    ``tree_mask`` [bs * n * n] bool: element (i, a, b) says that b is an ancestor of a, or a itself; only b < a counts.
    The nearest ancestor is the parent. Written in place: ``positions`` [bs * n] and the three arrays of the tree.
    """
    n = draft_token_num
    masks = tree_mask.view(-1)[: batch_size * n * n].view(batch_size, n, n).tolist()
    depths, first_children, next_siblings = [], [], []
    for length, mask in zip(verified_seq_len.tolist(), masks, strict=True):
        ancestors = [[node for node in range(a) if mask[a][node]] for a in range(n)]
        depths += [length + len(nodes) for nodes in ancestors]
        # The first node below b is a child of b, since parents come before their children.
        first_children += [next((a for a in range(n) if b in ancestors[a]), NONE) for b in range(n)]
        next_siblings += _next_siblings([nodes[-1] if nodes else NONE for nodes in ancestors])
    _write(positions, depths)
    _write(retrieve_index, range(batch_size * n))
    _write(retrieve_next_token, first_children)
    _write(retrieve_next_sibling, next_siblings)


def _parents(picks: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Each node's parent; NONE for the root, and for a candidate whose parent was not selected."""
    node_of = {NONE: NONE}
    for node, pick in reversed(list(enumerate(picks, 1))):
        node_of[pick] = node  # of equal candidates the first one counts
    slots = [pick // topk for pick in picks]
    return [NONE, *(0 if slot == 0 else node_of.get(parent_list[slot], NONE) for slot in slots)]


def _path(parents: list[int], node: int, depth: int) -> set[int]:
    """The root, the node, and its ancestors up to ``depth`` nodes away from the root."""
    path = {0}
    while node > 0 and len(path) <= depth:
        path.add(node)
        node = parents[node]
    return path


def _first_children(parents: list[int]) -> list[int]:
    return [next((node for node, parent in enumerate(parents) if parent == a), NONE) for a in range(len(parents))]


def _next_siblings(parents: list[int]) -> list[int]:
    following = [NONE] * len(parents)
    latest: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent in latest:
            following[latest[parent]] = node
        if parent != NONE:
            latest[parent] = node
    return following


def _write(target: Tensor, values: Iterable[int]) -> None:
    """Put integers at the front of a tensor of any shape, in row-major order."""
    content = torch.tensor(list(values), dtype=target.dtype)
    target.view(-1)[: content.numel()] = content
