"""Parameters: what is refused, in which words, and that nothing changes its meaning on the way."""

from pathlib import Path

import nbformat
import papermill
import pytest

from breakeven import config
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
        config.load_parameters(tmp_path / "smok.yaml")


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
