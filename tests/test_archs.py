"""Architecture names: what they stand for, and names that are none."""

from __future__ import annotations

import pytest

from breakeven.errors import UserError
from breakeven.gates.archs import ARCHS, capability, family, name_of


@pytest.mark.parametrize("arch", ARCHS)
def test_a_name_and_its_capability_are_each_others_inverse(arch: str) -> None:
    assert name_of(*capability(arch)) == arch
    assert capability(f" {arch.upper()}a") == capability(arch.replace("sm", "sm_")) == capability(arch)


def test_a_family_is_named_by_its_major_version() -> None:
    assert [family(arch) for arch in ("sm90", "sm103", "sm121")] == ["sm90", "sm100", "sm120"]


@pytest.mark.parametrize(
    ("cut_short", "meant"), [("sm12", "sm120"), ("sm10", "sm100"), ("SM_12", "sm120"), ("sm9", "sm90")]
)
def test_a_name_cut_short_is_no_architecture(cut_short: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"{cut_short}.*did you mean '{meant}'"):
        capability(cut_short)


@pytest.mark.parametrize("name", ["", "blackwell", "sm", "sm00", "sm11", "12.0", "sm12x", "sm1200"])
def test_what_is_no_name_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(UserError, match="sm"):
        capability(name)
