"""The edits as text before and after."""

from collections.abc import Callable
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.fusion.edit import Target, UnexpectedSourceError, open_gates


def opened(source: str, *targets: Target, family: str = "sm120", multicast_why: str | None = None) -> str:
    after, _ = open_gates(dedent(source).encode(), family, targets, multicast_why=multicast_why)
    return after.decode()


def gate(symbol: str, expression: str, line: int = 1) -> Target:
    return Target(symbol, expression, line, "because")


def test_a_predicate_over_module_level_names_gets_a_name_and_an_import_more() -> None:
    before = """
        from sglang.srt.utils import (
            is_cuda,
            is_sm90_supported,
            is_sm100_supported,
        )

        _is_cuda = is_cuda()
        _is_sm90_supported = _is_cuda and is_sm90_supported()
        _is_sm100_supported = _is_cuda and is_sm100_supported()  # Blackwell


        def apply_fusion(batch_size: int):
            return (
                # a comment that stays
                (_is_sm90_supported or _is_sm100_supported)
                and batch_size > 0
            )
    """
    after = """
        from sglang.srt.utils import (
            is_cuda,
            is_sm90_supported,
            is_sm100_supported,
            is_sm120_supported,
        )

        _is_cuda = is_cuda()
        _is_sm90_supported = _is_cuda and is_sm90_supported()
        _is_sm100_supported = _is_cuda and is_sm100_supported()  # Blackwell
        _is_sm120_supported = _is_cuda and is_sm120_supported()


        def apply_fusion(batch_size: int):
            return (
                # a comment that stays
                (_is_sm90_supported or _is_sm100_supported or _is_sm120_supported)
                and batch_size > 0
            )
    """
    assert opened(before, gate("apply_fusion", "_is_sm90_supported or _is_sm100_supported")) == dedent(after)


def test_a_question_to_the_platform_needs_no_import() -> None:
    before = """
        def resolve(backend: str) -> str:
            if not (get_platform().is_sm90 or get_platform().is_sm100):
                raise ValueError("no")
            if get_platform().is_sm100:
                return "mnnvl"
            return "trtllm"
    """
    after = before.replace("get_platform().is_sm100):", "get_platform().is_sm100 or get_platform().is_sm120):")
    target = gate("resolve", "not (get_platform().is_sm90 or get_platform().is_sm100)")
    assert opened(before, target) == dedent(after)


def test_a_single_question_inside_a_longer_condition_gets_parentheses() -> None:
    before = """
        from utils import is_sm100_supported

        class Layer:
            def fuses(self, x):
                return is_sm100_supported() and x.shape[0] <= 128
    """
    after = """
        from utils import is_sm100_supported, is_sm120_supported

        class Layer:
            def fuses(self, x):
                return (is_sm100_supported() or is_sm120_supported()) and x.shape[0] <= 128
    """
    assert opened(before, gate("Layer.fuses", "is_sm100_supported() and x.shape[0] <= 128")) == dedent(after)


def test_an_alias_without_a_number_gets_a_twin_with_one() -> None:
    before = """
        from utils import is_sm90_supported

        hopper = is_sm90_supported()

        def fuses():
            return hopper and True
    """
    after = """
        from utils import is_sm90_supported, is_sm120_supported

        hopper = is_sm90_supported()
        hopper_sm120 = is_sm120_supported()

        def fuses():
            return (hopper or hopper_sm120) and True
    """
    assert opened(before, gate("fuses", "hopper and True")) == dedent(after)


def test_a_multicast_preflight_lets_the_new_architecture_through_and_no_other() -> None:
    before = """
        def resolve():
            if not (is_sm90() or is_sm100()):
                raise ValueError

        def sizes(driver, size):
            err, granularity = driver.cuMulticastGetGranularity(size)
            if err != driver.SUCCESS:
                raise RuntimeError(f"failed: {err}")
            return align(size, granularity)

        from utils import is_sm90, is_sm100
    """
    after = """
        def resolve():
            if not (is_sm90() or is_sm100() or is_sm120()):
                raise ValueError

        def sizes(driver, size):
            err, granularity = driver.cuMulticastGetGranularity(size)
            if err != driver.SUCCESS and is_sm120():
                # the workspace here uses no multicast: nothing to align to
                granularity = 1
            elif err != driver.SUCCESS:
                raise RuntimeError(f"failed: {err}")
            return align(size, granularity)

        from utils import is_sm90, is_sm100, is_sm120
    """
    assert opened(before, gate("resolve", "is_sm90() or is_sm100()"), multicast_why="no multicast") == dedent(after)


def test_of_two_equal_conditions_the_one_nearest_to_the_line_is_opened() -> None:
    before = "from u import is_sm90\ndef f():\n    a = is_sm90()\n    b = is_sm90()\n"
    assert opened(before, gate("f", "is_sm90()", line=4)).splitlines()[2:] == [
        "    a = is_sm90()",
        "    b = (is_sm90() or is_sm120())",
    ]


def test_a_gate_that_asks_for_the_architecture_already_is_left_alone() -> None:
    before = "from u import is_sm90, is_sm120\ndef f():\n    return is_sm90() or is_sm120()\n"
    after, edits = open_gates(before.encode(), "sm120", [gate("f", "is_sm90() or is_sm120()")])
    assert (after.decode(), edits) == (before, [])


def test_opening_twice_changes_nothing_more() -> None:
    once = opened("from u import is_sm90\ndef f():\n    return is_sm90() and x\n", gate("f", "is_sm90() and x"))
    assert opened(once, gate("f", "(is_sm90() or is_sm120()) and x")) == once


def test_each_edit_says_where_it_is_what_was_there_and_why() -> None:
    source = "from u import is_sm90\n\ndef f():\n    return is_sm90() and x\n"
    _, edits = open_gates(source.encode(), "sm120", [gate("f", "is_sm90() and x")])
    assert [(edit.symbol, edit.line, edit.before, edit.after) for edit in edits] == [
        ("is_sm90", 1, "from u import is_sm90", "from u import is_sm90, is_sm120"),
        ("f", 4, "is_sm90()", "(is_sm90() or is_sm120())"),
    ]
    assert all(edit.why for edit in edits)


@pytest.mark.parametrize(
    ("source", "expression", "said"),
    [
        ("def g():\n    return is_sm90()\n", "is_sm90()", "there is no f"),
        ("def f():\n    return is_sm80()\n", "is_sm90()", "f has no condition"),
        ("def f():\n    return x > 3\n", "x > 3", "asks about no architecture"),
        ("def f(is_sm90):\n    return is_sm90\n", "is_sm90", "bound neither by import nor at the top"),
        ("def f(:\n", "is_sm90()", "no Python that can be parsed"),
    ],
)
def test_a_source_of_another_shape_is_refused_with_what_was_looked_for(source: str, expression: str, said: str) -> None:
    with pytest.raises(UnexpectedSourceError, match=said):
        open_gates(source.encode(), "sm120", [gate("f", expression)])


@given(
    archs=st.lists(st.sampled_from(["sm80", "sm90", "sm100", "sm103"]), min_size=1, max_size=4, unique=True),
    others=st.lists(st.sampled_from(["size > 0", "enabled()", "not off"]), max_size=3),
    first=st.booleans(),
    negated=st.booleans(),
)
def test_the_opened_condition_is_the_old_one_or_the_new_architecture(
    archs: list[str], others: list[str], first: bool, negated: bool
) -> None:
    """Whatever the order of terms: the same answer on known architectures, and on sm120 the answer of one of them."""
    group = "(" + " or ".join(f"is_{arch}()" for arch in archs) + ")"
    condition = " and ".join([group, *others] if first else [*others, group])
    condition = f"not ({condition})" if negated else condition
    imports = "from u import " + ", ".join(f"is_{arch}" for arch in archs)
    after = opened(f"{imports}\ndef f():\n    return {condition}\n", gate("f", condition)).splitlines()[2]
    old, new = compile(condition, "", "eval"), compile(after.removeprefix("    return "), "", "eval")
    for machine in [*archs, "sm120", "sm89"]:
        asked = _questions([*archs, "sm120"], machine)
        as_known = _questions(archs, archs[0])
        for size, enabled, off in [(1, True, False), (0, True, False), (1, False, False), (1, True, True)]:
            around = {"size": size, "enabled": lambda enabled=enabled: enabled, "off": off}
            expected = eval(old, {**around, **(as_known if machine == "sm120" else asked)})
            assert eval(new, {**around, **asked}) == expected


def _questions(archs: list[str], machine: str) -> dict[str, Callable[[], bool]]:
    return {f"is_{arch}": (lambda arch=arch: arch == machine) for arch in archs}
