"""What each SGLang release has: speculative algorithms and the flags of the n-gram drafter (read in the sources)."""

from __future__ import annotations

import re

from breakeven.errors import UserError, did_you_mean

KNOWN_ALGORITHMS: dict[str, str] = {  # algorithm -> first release whose command line takes it
    "EAGLE": "0.4.4",
    "NEXTN": "0.4.4",
    "EAGLE3": "0.4.5",
    "STANDALONE": "0.5.2",
    "NGRAM": "0.5.3",
    "DFLASH": "0.5.11",
    "FROZEN_KV_MTP": "0.5.12",
    "DSPARK": "0.5.16",
    "UNO": "0.5.20",
}


def version_key(version: str) -> tuple[int, ...]:
    """A release as a sortable tuple; ``.post3`` sorts after its base. Raises UserError when it is no release number."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?:\.post(\d+)|\.dev\d+|(?:a|b|rc)\d+)?", version.strip())
    if not match:
        raise UserError(f"{version!r} is no SGLang release; give one like 0.5.23 or 0.5.3.post3")
    base, post = tuple(int(part) for part in match.groups()[:3]), match.group(4)
    return (*base, int(post)) if post else base


def check_algorithm(algorithm: str, version: str) -> None:
    """Raises UserError when this release does not have this speculative algorithm (there is none called MTP)."""
    available = [name for name, since in KNOWN_ALGORITHMS.items() if version_key(since) <= version_key(version)]
    name = algorithm.upper()
    if name not in KNOWN_ALGORITHMS:
        hint = "; for built-in MTP heads use NEXTN" if "MTP" in name else did_you_mean(name, available)
        raise UserError(f"SGLang {version} has no speculative algorithm {algorithm!r}{hint}")
    if name not in available:
        raise UserError(
            f"speculative algorithm {algorithm!r} came with SGLang {KNOWN_ALGORITHMS[name]} and this is {version}; "
            f"upgrade, or use one of: {', '.join(available)}"
        )


def ngram_flags(version: str) -> dict[str, str]:
    """Command-line flags of the NGRAM drafter in this release, by meaning (some were renamed at 0.5.10)."""
    check_algorithm("NGRAM", version)
    flags = {
        "capacity": "--speculative-ngram-capacity",
        "match_type": "--speculative-ngram-match-type",
        "min_breadth": "--speculative-ngram-min-bfs-breadth",
        "max_breadth": "--speculative-ngram-max-bfs-breadth",
    }
    if version_key(version) >= (0, 5, 10):
        return {**flags, "max_depth": "--speculative-ngram-max-trie-depth"}
    return {
        **flags,
        "max_depth": "--speculative-ngram-branch-length",
        "min_match": "--speculative-ngram-min-match-window-size",
        "max_match": "--speculative-ngram-max-match-window-size",
    }
