"""Parameters: what is refused, in which words, and that nothing changes its meaning on the way."""

from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from breakeven import artifacts, config
from breakeven.errors import UserError

ROOT = Path(__file__).parents[1]


def refusal(text: str, tmp_path: Path) -> str:
    file = tmp_path / "parameters.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        config.settle(config.load_parameters(file))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("restart: 3", "did you mean 'restarts'"),
        ("restarts: '3'", "restarts is '3' (str); expected integer"),
        ("restarts: 2.5", "restarts is 2.5"),
        ("restarts: 0", "greater than or equal to 1"),
        ("profile_steps: 2", "2 steps hold no whole cycle, one is the prefill; give 3 or more, or 0"),
        ("aa_pair: 'false'", "write true or false without quotes"),
        ("engine: embeded", "did you mean 'embedded'"),
        ("arch: sm12", "allowed: auto, sm80"),
        ("drafters: NGRAM", "drafters is 'NGRAM' (str); expected list"),
        ("- restarts", "expected lines of `name: value`"),
        ("restarts: [", "is no YAML"),
        ("restarts: 2\nrestarts: 3", ":2: 'restarts' is set twice"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("level: 1e-3", "write it like 1.0e-3"),
        ("prompts: no", "write true or false, or quote it"),
        ("prompts: 12:30", "quote it"),
        ("restarts: 010", "drop the leading zero"),
        ("on: 3", "write true or false, or quote it"),
        ("prompts: 2026-11-29", "a date"),
        ("restarts:", "leave the line out"),
        ("kinds: [yes]", "write true or false, or quote it"),
    ],
)
def test_what_yaml_would_silently_change_is_refused_with_its_line_and_a_way_out(
    text: str, advice: str, tmp_path: Path
) -> None:
    message = refusal(text, tmp_path)
    assert advice in message and ":1:" in message


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("restarts: 1\n")
    with pytest.raises(UserError, match=r"did you mean 'smoke.yaml'"):
        config.parameter_file(tmp_path / "smok.yaml")


def test_a_missing_file_where_there_are_none_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "project_root", lambda: tmp_path)
    with pytest.raises(UserError, match=r"no parameter file x; give one, such as parameters/cpu.yaml$"):
        config.parameter_file(Path("x"))


@pytest.mark.parametrize("name", ["cpu.yaml", "parameters/cpu.yaml"])
@pytest.mark.parametrize("folder", [".", "outputs", "parameters"])
def test_a_parameter_file_is_found_from_anywhere_in_the_checkout(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / folder)
    assert config.parameter_file(Path(name)) == ROOT / "parameters/cpu.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "ready_timeout_s: .inf",
        "request_timeout_s: .inf",
        "ready_timeout_s: .nan",
        "temperature: [.nan]",
        "temperature: [-.inf]",
        "level: .nan",
    ],
)
def test_only_finite_numbers(text: str, tmp_path: Path) -> None:
    """run.json could not hold others, and no run with them could be resumed."""
    assert "finite number" in refusal(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrency: [1,2", "is no YAML"),
        ("model: {{ MODEL }}", ":1: braces or brackets where a name is expected; quote them"),
        ("? [a]\n: 1", ":1: braces or brackets where a name is expected"),
        ("drafters: &x [*x]", "an alias (*) stands within its own anchor (&)"),
        ("drafters: &x [{algorithm: *x}]", "an alias (*) stands within its own anchor (&)"),
        ("drafters: " + "[" * 5000, "nested too deep"),
        ("restarts: !!int x", "is no YAML"),
        ("restarts: " + "1" * 5000, "is no YAML"),
        ("prompts: !!timestamp x", "is no YAML"),
        ("prompts: !mine x", "is no YAML"),
        ("prompts: *nothing", "is no YAML"),
        ("a: 1\n---\nb: 2", "is no YAML"),
    ],
    ids=lambda text: text[:30],
)
def test_broken_yaml_is_one_line_wherever_it_stands(text: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(text, tmp_path)
    name, colon, value = text.partition(": ")
    if colon and config.field_types().get(name) not in (None, str):
        with pytest.raises(UserError) as caught:
            config.parse_override(f"{name}={value}")
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_anchors_and_merged_maps_are_read(tmp_path: Path) -> None:
    file = tmp_path / "parameters.yaml"
    file.write_text("drafters: [&one {algorithm: NGRAM}, {<<: *one, draft_tokens: 8}, *one]\n")
    first, second, third = config.load_parameters(file)["drafters"]
    assert first == third == {"algorithm": "NGRAM"} and second == {"algorithm": "NGRAM", "draft_tokens": 8}


@pytest.mark.parametrize("name", ["X; touch F #", "NCCL-ALGO", "1X", "", "A B", "Ä", "$X", "X\n"])
def test_names_of_variables_are_checked(name: str) -> None:
    env = {name: "1"}
    for values in (
        {"server_env": env},
        {"variants": {"a": {"env": env}}},
        {"drafters": [{"algorithm": "NGRAM", "env": env}]},
    ):
        with pytest.raises(UserError, match="no name of an environment variable"):
            config.settle(values)
    if name:
        with pytest.raises(UserError, match="secret_env is no name"):
            config.settle({"secret_env": name})
    assert config.settle({"server_env": {"NCCL_ALGO": "1", "_x1": "2"}, "secret_env": "BOX_PASSWORD"})


@pytest.mark.parametrize(
    "values",
    [
        {"server_env": {"HF_TOKEN": "hf_123"}},
        {"server_env": {"WANDB_API_KEY": "hf_123"}},
        {"server_env": {"HF_TOKEN": "${hf_123}"}},
        {"variants": {"a": {"env": {"my_secret": "hf_123"}}}},
        {"variants": {"a": {"flags": ["--api-key=hf_123"]}}},
        {"drafters": [{"algorithm": "NGRAM", "env": {"PASSWORD": "hf_123"}}]},
        {"server_flags": ["--api-key", "hf_123"]},
        {"server_flags": ["--admin-api-key=hf_123"]},
        {"command_prefix": ["env", "HF_TOKEN=hf_123"]},
        {"command_prefix": ["docker", "exec", "--env=HF_TOKEN=hf_123", "-i", "box"]},
        {"secret_env": "hf_123!"},
    ],
    ids=str,
)
def test_a_literal_token_is_refused(values: dict[str, Any]) -> None:
    """What a run is given it writes down, in five files and a notebook; the refusal does not repeat it either."""
    with pytest.raises(UserError) as caught:
        config.settle(values)
    assert "hf_123" not in str(caught.value)


def test_a_token_that_is_named_is_taken() -> None:
    named = {"server_env": {"HF_TOKEN": "$HF_TOKEN", "TOKENIZERS_PARALLELISM": "0", "OPENAI_API_KEY": ""}}
    flags = {"server_flags": ["--tokenizer-path", "x", "--schedule-policy=lpm", "--max-total-tokens=9"]}
    prefix = {"command_prefix": ["docker", "exec", "-e", "HF_TOKEN", "-i", "box"]}
    assert config.settle({**named, **flags, **prefix})


def test_a_binary_file_is_no_parameter_file(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="text file"):
        config.load_parameters(tmp_path / "model.yaml")


def test_overrides_are_read_by_the_declared_type() -> None:
    assert config.parse_override("restarts=3") == ("restarts", 3)
    assert config.parse_override("prompts=12:30") == ("prompts", "12:30")
    assert config.parse_override("kinds=[open chat]") == ("kinds", ["open chat"])
    assert config.parse_override("aa_pair=false") == ("aa_pair", False)
    with pytest.raises(UserError, match="did you mean 'restarts'"):
        config.parse_override("restrats=3")
    with pytest.raises(UserError, match="name=value"):
        config.parse_override("restarts")


def test_model_none_needs_records() -> None:
    with pytest.raises(UserError, match="give a model or records"):
        config.settle({"model": "none", "records": "none"})
    assert config.settle({"model": "none", "records": "r.csv"}) and config.settle({"records": "none"})


@pytest.mark.parametrize("file", sorted((ROOT / "parameters").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_parameter_file_is_accepted(file: Path) -> None:
    assert len(config.settle(config.load_parameters(file))) == 5


@pytest.mark.parametrize("notebook", config.NOTEBOOKS)
def test_the_parameters_cell_is_what_the_settings_class_declares(notebook: str) -> None:
    book = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4)
    tagged = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.source for cell in tagged] == [config.parameters_cell(notebook)]


@pytest.mark.parametrize("notebook", config.NOTEBOOKS)
def test_papermill_sees_every_parameter(notebook: str) -> None:
    seen = papermill.inspect_notebook(ROOT / "notebooks" / f"{notebook}.ipynb")
    assert set(seen) == set(config.NOTEBOOKS[notebook].model_fields)


def test_a_name_shared_by_notebooks_has_one_type_and_one_default() -> None:
    known: dict[str, tuple[object, object]] = {}
    for cls in config.NOTEBOOKS.values():
        for name, field in cls.model_fields.items():
            assert known.setdefault(name, (field.annotation, field.default)) == (field.annotation, field.default)
