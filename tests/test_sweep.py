"""Planning and storing a sweep: which cells, in which order, and what a crash or a resume may do to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from breakeven import artifacts
from breakeven.config import SweepSettings
from breakeven.errors import UserError
from breakeven.hosts import LOCAL
from breakeven.launch import design
from breakeven.launch.serving import Serving
from breakeven.server import LaunchFailure, attach
from breakeven.sweep import load, measuring, running
from breakeven.sweep.store import Store
from breakeven.telemetry.failures import Failure
from breakeven.workload.prompts import Prompt
from breakeven.workload.untraced import UNMEASURED
from tests.stand_in import lay_out_stand_in


def names(drafters: list[dict[str, Any]], **options: Any) -> list[str]:
    return [arm.name for arm in design.plan_arms(drafters, **options)]


def test_lists_are_a_grid_and_the_baseline_comes_first() -> None:
    grid = [{"algorithm": "NGRAM", "draft_tokens": [2, 4], "breadth": 1}]
    assert names(grid) == ["baseline", "ngram-d2-b1", "ngram-d4-b1"]
    assert names(grid, aa_pair=True)[-1] == "baseline-again"


def test_settings_that_sglang_would_make_equal_are_one_cell() -> None:
    chain = {"algorithm": "STANDALONE", "model": "m", "steps": 3, "topk": 1, "draft_tokens": [4, 8, 16]}
    assert len(names([chain])) == 2


def test_every_variant_has_a_baseline_of_its_own_to_compare_with() -> None:
    variants = {"off": {"fusion": "off"}, "on": {"fusion": "trtllm", "env": {"NCCL_ALGO": "Ring"}}}
    arms = design.plan_arms([{"algorithm": "NGRAM", "draft_tokens": 4, "breadth": 1}], variants, aa_pair=True)
    assert [arm.name for arm in arms] == [
        "off/baseline",
        "off/ngram-d4-b1",
        "on/baseline",
        "on/ngram-d4-b1",
        "off/baseline-again",
    ]
    assert arms[3].baseline == "on/baseline" and arms[3].variant.env == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ({"a b": {}}, "letters, digits"),
        ({"x": {"flag": []}}, "did you mean 'flags'"),
        ({"x": {"fusion": "trtlm"}}, "did you mean 'trtllm'"),
        ({"x": {"env": {"A": 1}}}, "numbers in quotes"),
        ({"x": {"flags": "--a"}}, "list of texts"),
        ({"x": None}, "give any of"),
    ],
)
def test_a_variant_that_makes_no_sense_is_refused_by_name(variants: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        design.plan_arms([], variants)


def test_conditions_are_every_combination_and_the_plain_one_has_no_suffix() -> None:
    conditions = design.plan_conditions([1, 4, 4], [0.0, 0.7], [0], 8)
    assert [each.suffix for each in conditions] == ["", "@t0.7", "@c4", "@c4@t0.7"]
    with pytest.raises(UserError, match="concurrency holds 0"):
        design.plan_conditions([0], [0.0], [0], 8)
    with pytest.raises(UserError, match="temperature is an empty list"):
        design.plan_conditions([1], [], [0], 8)


def test_more_in_flight_than_the_server_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = SweepSettings(concurrency=[1, 16], kinds=["open chat"])
    refused = "concurrency holds 16, and a server runs 8 requests at once.*set max_running_requests: 16"
    for choose in (running.plan, lambda settings: load.Workload.chosen(settings, list)):
        with pytest.raises(UserError, match=refused):
            choose(many)
    assert running.plan(many.model_copy(update={"max_running_requests": 16}))
    running_there = {"speculative_algorithm": None, "max_running_requests": 12}  # a server of somebody else's
    monkeypatch.setattr(attach, "look_at", lambda url: SimpleNamespace(effective=running_there))
    attached = attach.as_it_runs(many.model_copy(update={"host": "attach:http://127.0.0.1:30000"}), lambda text: None)
    with pytest.raises(UserError, match="a server runs 12 requests at once"):
        load.Workload.chosen(attached, list)


def test_every_condition_is_warmed_up_as_it_is_measured_and_with_texts_of_its_own() -> None:
    """SGLang compiles for a batch size and a way to sample when it first meets them."""
    settings = SweepSettings(concurrency=[1, 4], temperature=[0.0, 0.7], kinds=["open chat"], prompts_per_kind=2)
    chosen = load.Workload.chosen(settings, list)
    first, *others = chosen.batches
    assert len(first.warm_up) >= 1 and max(each.max_new_tokens for each in first.warm_up) > load.WARM_TOKENS
    assert [len(each.warm_up) for each in others] == [each.condition.concurrency for each in others] == [1, 4, 4]
    for batch in others:
        assert all(each.max_new_tokens <= load.WARM_TOKENS for each in batch.warm_up)
    first_texts = {each.prompt for each in first.warm_up}
    assert not first_texts & {each.prompt for batch in others for each in batch.warm_up}
    ids = [each.id for batch in chosen.batches for each in batch.warm_up]
    assert len(set(ids)) == len(ids), "the client knows a text by its prompt's id"
    warmed = {each.prompt for batch in chosen.batches for each in batch.warm_up}
    assert not warmed & {each.prompt for batch in chosen.batches for each in batch.prompts}


def test_whatever_is_sent_under_a_condition_has_its_length_of_context() -> None:
    settings = SweepSettings(
        concurrency=[4, 1], context_tokens=[0, 3000], context_length=8192, kinds=["open chat"], prompts_per_kind=2
    )
    chosen = load.Workload.chosen(settings, list)
    for batch in chosen.batches:
        for some in (batch.prompts, batch.company, batch.warm_up[-batch.condition.concurrency :]):
            assert all((len(each.prompt) > 2500) is bool(batch.condition.context_tokens) for each in some)
    company = [each for batch in chosen.batches for each in batch.company]
    assert len({each.id for each in company}) == len(company) > 0, "the client knows a text by its prompt's id"
    assert len(chosen.traced.prompt) < 2500, "the first condition with one request at a time"
    settings = settings.model_copy(update={"context_tokens": [3000]})
    assert len(load.Workload.chosen(settings, list).traced.prompt) > 2500


def test_the_plan_of_an_attached_server_is_one_measurement() -> None:
    attached = SweepSettings(host="attach:http://127.0.0.1:30000", concurrency=[1, 64])
    assert [each.key for each in running.plan(attached)] == ["baseline.restart0"]
    words = running.plan_in_words(attached)
    assert words.startswith("1 server, which runs already: ") and "measured once" in words and "launches" not in words


@pytest.mark.parametrize("name", measuring.PINS)
def test_a_pin_of_the_shell_counts_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3.0")
    monkeypatch.setenv("LENGTH", "2.0")
    lengths = {4: {}, 6: {"env": {name: "-1"}}, 8: {"env": {name: "$LENGTH"}}}
    drafters = [{"algorithm": "NGRAM", "draft_tokens": tokens, **more} for tokens, more in lengths.items()]
    settings = SweepSettings(engine="native", model="/m", drafters=drafters)
    serving = Serving(settings, tmp_path, LOCAL, Path("/m"), LOCAL.environ(), (), list)
    chosen = load.Workload([load.Batch(design.Condition(), [], [], [])], Prompt("", "", "", 1))

    def no_server(self: Serving, name: str, *_: object) -> None:
        raise LaunchFailure(Failure("config", None, "it is a test", ""), tmp_path / "log")

    monkeypatch.setattr(Serving, "launch", no_server)
    measurement = measuring.Measurement(settings, serving, chosen, Store(tmp_path, {}, resume=False), lambda text: None)
    arms = design.plan_arms(drafters)
    pinned = [measurement.run(design.Launch(arm, 0))[0].get("accept_length_pinned") for arm in arms]
    assert pinned == [None, 3.0, None, 2.0], "a baseline has no accept length"
    with pytest.raises(UserError, match="the accept length of ngram-d4 is pinned"):
        running.refuse_pinned(arms, serving.whole_environment, search=True)
    running.refuse_pinned([arms[0], arms[2]], serving.whole_environment, search=True)


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"flags": ["--disable-custom-allreduce"]}, "bad/baseline: SGLang 0.5.9 has no flag --disable-custom"),
        ({"fusion": "trtllm"}, r"SGLang 0.5.9 can't choose the fusion backend \(trtllm\); give auto"),
        ({"use_overlay": True}, "overlay does not exist; run notebook 02"),
        ({"env": {"TOKEN": "$NOT_SET_ANYWHERE"}}, "the environment has no such variable"),
        ({"env": {"SGLANG_SIMULATE_ACC_LEN": "two"}}, "is 'two'; give a number"),
    ],
)
def test_no_launch_is_made_while_an_arm_can_not_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: dict[str, Any], words: str
) -> None:
    environment = {**LOCAL.environ(), "PYTHONPATH": str(lay_out_stand_in(tmp_path / "site", "0.5.9"))}
    settings = SweepSettings(engine="native", model="/m", drafters=[], variants={"good": {}, "bad": variant})
    (run_dir := tmp_path / "run").mkdir()
    serving = Serving(settings, run_dir, LOCAL, Path("/m"), environment, (), lambda text: [len(text)])
    monkeypatch.setattr(Serving, "prepare", lambda *_: serving)
    monkeypatch.setattr(Serving, "preflight", lambda *_: [])
    monkeypatch.setattr(Serving, "launch", lambda *_: pytest.fail("a server was launched"))
    with pytest.raises(UserError, match=words) as caught:
        running.run_sweep(settings, run_dir)
    assert "\n" not in str(caught.value) and list(run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ({"algorithm": "NGRAM", "draft_token": 4}, "did you mean 'draft_tokens'"),
        ({"draft_tokens": 4}, "names no algorithm"),
        ({"algorithm": "NGRAM", "draft_tokens": []}, "draft_tokens of NGRAM is an empty list"),
        ({"algorithm": "NGRAN", "draft_tokens": 4}, "did you mean 'NGRAM'"),
        ({"algorithm": "STANDALONE", "model": "m", "steps": 3, "topk": 4, "draft_tokens": 99}, "tree of"),
    ],
)
def test_what_no_server_can_run_is_refused_before_any_launch(drafter: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        design.plan_arms([drafter])


def test_restarts_interleave_the_cells_and_every_second_one_runs_backwards() -> None:
    cells = design.plan_arms([{"algorithm": "NGRAM", "draft_tokens": [2, 4], "breadth": 1}])
    order = [each.arm.name for each in design.plan_launches(cells, 2)]
    assert order == ["baseline", "ngram-d2-b1", "ngram-d4-b1", "ngram-d4-b1", "ngram-d2-b1", "baseline"]


def test_the_figures_of_a_launch_are_ratios_of_sums_without_the_prefills_token() -> None:
    request = {"completion_tokens": 41, "decode_s": 2.0, "verify_ct": 20, "degenerate": False, "error": None}
    looping = {**request, "degenerate": True, "decode_s": 0.1}
    figures = measuring.summary([request, {**request, "decode_s": 3.0}, looping, {"error": "HTTP 500"}], 4)
    assert figures == {
        "requests": 4,
        "errors": 1,
        "degenerate": 1,
        "tok_s": pytest.approx(80 / 5),
        "server_tok_s": pytest.approx(4 * 80 / 5),
        "accept_length": pytest.approx(2.0),
        "cycle_ms": pytest.approx(125.0),
    }
    assert "tok_s" not in measuring.summary([looping])


def test_the_mean_text_before_a_cycle_counts_the_prompt_and_half_of_each_answer() -> None:
    short = {"prompt_tokens": 10, "completion_tokens": 21, "decode_s": 1.0, "degenerate": False, "error": None}
    short["verify_ct"] = 20  # one token a cycle
    long = {**short, "prompt_tokens": 100, "completion_tokens": 61, "verify_ct": 20}  # three
    looping = {**long, "degenerate": True, "prompt_tokens": 999}
    told = measuring._told([short, long, looping], {"cycle_ms": 25.0})
    assert told.cycle_ms == 25.0 and told.text_tokens == pytest.approx((20.5 + 130.5) / 2)
    assert measuring._told([looping], {}) == UNMEASURED


def lost(launch: design.Launch) -> list[dict[str, Any]]:
    failure = {"class": "connection-lost", "line": None, "text": "the connection to x dropped", "advice": ""}
    return [{"launch": f"{launch.key}.1", "status": "failed", "failure": failure}]


def test_a_launch_that_was_lost_with_its_connection_is_made_again_three_times_at_most(tmp_path: Path) -> None:
    settings = SweepSettings(run_dir="unused", drafters=[], restarts=1)
    store, said, made = Store(tmp_path, {}, resume=False), [], []

    def measure(launch: design.Launch) -> list[dict[str, Any]]:
        made.append(launch.key)
        if len(made) % 3:
            return lost(launch)
        fixed = {"cell": "baseline", "arm": "baseline", "restart": 0, "seconds": 1.0}
        return [{**fixed, "launch": f"{launch.key}.3", "status": "ok", "failure": None}]

    assert running.measure_all(settings, running.plan(settings), store, measure, said.append) == ["baseline.restart0.3"]
    assert [row["status"] for row in store.rows] == ["ok"]
    assert sum("the connection to x dropped; it is measured again" in text for text in said) == 2
    store.rows.clear()
    with pytest.raises(ConnectionError, match="lost its connection 3 times; the last: the connection to x dropped"):
        running.measure_all(settings, running.plan(settings), store, lost, said.append)
    assert store.rows == []


def test_without_a_model_nothing_is_planned_or_measured_and_that_is_said(tmp_path: Path) -> None:
    settings = SweepSettings(run_dir="unused", model="none")
    result = running.run_sweep(settings, tmp_path)
    assert list(tmp_path.iterdir()) == [] and result["cells"] == []
    assert "Nothing was launched" in running.plan_in_words(settings)
    assert running.findings(result) == [running.plan_in_words(settings)]


class TestStore:
    """The files of a sweep."""

    SETTINGS = SweepSettings(run_dir="unused")

    def launch(self, name: str = "baseline", restart: int = 0) -> design.Launch:
        return design.Launch(design.Arm(name, None), restart)

    def row(self, launch: str, status: str = "ok", cell: str = "baseline") -> dict[str, Any]:
        return {"cell": cell, "arm": cell, "restart": 0, "launch": launch, "status": status, "seconds": 10.0}

    def store(self, folder: Path, *, resume: bool = False, **changes: Any) -> Store:
        settings = SweepSettings(**{**self.SETTINGS.model_dump(), **changes})
        return Store(folder, running._plan(settings), resume=resume)

    def test_a_resumed_sweep_keeps_what_succeeded_and_repeats_what_failed(self, tmp_path: Path) -> None:
        before = self.store(tmp_path)
        before.add(self.launch(), [self.row("baseline.restart0.1")])
        before.add(self.launch("ngram"), [self.row("ngram.restart0.1", "failed", "ngram")])
        after = self.store(tmp_path, resume=True)
        assert after.holds(self.launch()) and not after.holds(self.launch("ngram"))

    def test_a_launch_that_a_crash_cut_off_is_never_mixed_with_its_repetition(self, tmp_path: Path) -> None:
        before = self.store(tmp_path)
        before.add_sample({"launch": before.new_attempt(self.launch()), "phase": "measure"})
        assert self.store(tmp_path, resume=True).new_attempt(self.launch()) == "baseline.restart0.2"

    def test_more_restarts_may_be_added_but_no_other_setting_changed(self, tmp_path: Path) -> None:
        self.store(tmp_path).add(self.launch(), [self.row("baseline.restart0.1")])
        assert self.store(tmp_path, resume=True, restarts=5).rows
        with pytest.raises(UserError, match="another concurrency"):
            self.store(tmp_path, resume=True, concurrency=[4])

    def test_another_machine_is_refused(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        store.add(self.launch(), [self.row("baseline.restart0.1")])
        content = artifacts.read_json(tmp_path / "cells.json")
        artifacts.write_json(tmp_path / "cells.json", {**content, "machine": {"host": "elsewhere"}})
        with pytest.raises(UserError, match="another machine"):
            self.store(tmp_path, resume=True)

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("cells.json", '{"schema_version": 1, "plan": {}, "cel', "can't be read"),
            ("cells.json", '{"schema_version": 2, "plan": {}}', "schema_version 2; this release reads 1"),
            ("cells.json", "[1]", "holds no JSON object"),
            ("cells.json", '{"schema_version": 1, "plan": {}}', "lacks machine, cells, search"),
            (
                "cells.json",
                '{"schema_version": 1, "plan": 1, "machine": {}, "cells": {}, "search": []}',
                "lacks plan, ",
            ),
            ("cells.json", '{"schema_version": 1, "plan": {}, "machine": {}, "cells": [1], "search": []}', "rows that"),
            ("samples.jsonl", '{"launch": "a", "phase": "measure"}\n{"lau\n{}\n', "samples.jsonl:2 is no JSON"),
            ("samples.jsonl", "7\n", "lines that no sweep wrote"),
        ],
    )
    def test_files_that_no_sweep_wrote_are_refused_in_one_line_and_left_alone(
        self, tmp_path: Path, name: str, content: str, words: str
    ) -> None:
        self.store(tmp_path)
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=words) as caught:
            self.store(tmp_path, resume=True)
        assert "\n" not in str(caught.value) and (tmp_path / name).read_text() == content

    def test_a_line_that_a_crash_cut_off_is_no_sample_and_swallows_none(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        store.add(self.launch(), [self.row("baseline.restart0.1")])
        store.add_sample({"launch": "baseline.restart0.1", "phase": "measure"})
        with (tmp_path / "samples.jsonl").open("a") as file:
            file.write('{"launch": "baseline.restart0.1", "pha')
        again = self.store(tmp_path, resume=True)
        again.add_sample({"launch": "baseline.restart0.1", "phase": "measure"})
        assert len(again.samples()) == len(artifacts.read_jsonl(tmp_path / "samples.jsonl")) == 2

    def test_time_is_accounted_for_the_launches_of_this_process(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        spent = {"ready_s": 20.0, "measured_s": 15.0, "stop_s": 3.0, "drafter": "none"}
        for restart in (0, 1):
            row = {**self.row(f"baseline.restart{restart}.1"), **spent, "restart": restart}
            store.add(self.launch(restart=restart), [row, {**row, "cell": "baseline@c4"}])
        failed = {**self.row("ngram.restart0.1", "failed", "ngram"), "drafter": "NGRAM"}
        store.add(self.launch("ngram"), [failed])
        store.account(50.0, ["baseline.restart1.1", "ngram.restart0.1"])
        parts = {"starting_s": 20.0, "measuring_s": 15.0, "stopping_s": 3.0, "failed_s": 10.0, "own_s": 2.0}
        assert artifacts.read_json(tmp_path / "cells.json")["time"] == {"whole_s": 50.0, **parts}
        assert "4.0% were the suite's own" in running.findings(store.content())[-2]

    def test_a_launch_never_takes_the_name_of_a_log_that_an_earlier_sweep_left(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "fused_baseline.restart0.1.log").write_text("an earlier sweep's")
        store = self.store(tmp_path)
        assert store.new_attempt(self.launch("fused/baseline")) == "fused/baseline.restart0.2"
        assert store.new_attempt(self.launch()) == "baseline.restart0.1"

    def test_a_new_sweep_in_the_same_folder_sets_the_old_one_aside(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        store.add(self.launch(), [self.row("baseline.restart0.1")])
        store.add_sample({"launch": "baseline.restart0.1"})
        assert self.store(tmp_path).rows == []
        self.store(tmp_path)
        assert len(list(tmp_path.glob("cells.before-*.json"))) == 2
        assert len(list(tmp_path.glob("samples.before-*.jsonl"))) == 1
