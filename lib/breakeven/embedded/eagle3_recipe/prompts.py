"""The requests: first for texts and code, which the target writes; then for something to be done with them.

Two stages give prompts of the kinds that people write (a passage to summarise, code to change) although nothing comes
from outside the model but the word lists and the wording of the tasks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from breakeven.embedded.eagle3_recipe import materials, templates, words

SHARES = {
    "own turn": 0.16,
    "chat": 0.14,
    "sums": 0.03,
    "list and table": 0.13,
    "rewrite": 0.14,
    "extraction": 0.13,
    "summary": 0.09,
    "text, other": 0.04,
    "code edit": 0.11,
    "code, other": 0.03,
}
"""Share of each kind among the training prompts."""
WITH_SLOTS = 0.25
"""Share of materials that are records or snippets with slots rather than the target's own writing."""


@dataclass(frozen=True)
class Prompt:
    """What one user says, and of which kind it is."""

    kind: str
    text: str


def text_request(rng: random.Random) -> str:
    """Ask the target for a text that can serve as material."""
    return f"Write {fill(rng.choice(words.TEXT_FORMS), slots(rng))}."


def code_request(rng: random.Random) -> str:
    """Ask the target for code that can serve as material."""
    language = rng.choices(["Python", "JavaScript", "Java"], [8, 1, 1])[0]
    form = rng.choice(["a short {language} function", "a {language} function", "a small {language} program"])
    return f"Write {form.format(language=language)} that {rng.choice(words.CODE_TASKS)}. Only code, no explanation."


def own_turn_opening(rng: random.Random) -> str:
    """The first words of a user's turn that the target is to finish by itself."""
    return rng.choice(words.TURN_OPENERS)


def compose(rng: random.Random, kind: str, texts: Sequence[str], codes: Sequence[str], turns: Sequence[str]) -> Prompt:
    """One prompt of a kind (a key of SHARES) out of written texts, code and users' turns.

    Raises KeyError for an unknown kind.
    """
    if kind == "own turn":
        return Prompt(kind, rng.choice(turns or words.TURN_OPENERS))
    some = slots(rng)
    if kind in templates.FREE:
        return Prompt(kind, fill(rng.choice(templates.FREE[kind]), some))
    if kind in templates.OF_CODE:
        material = _material(rng, codes, materials.SNIPPETS, some)
        ask = fill(rng.choice(templates.OF_CODE[kind]), some | names_in_code(rng, material))
        return Prompt(kind, fill(rng.choice(templates.CODE_FRAMES), {"ask": ask, "code": material}))
    material = _material(rng, texts, materials.RECORDS, some)
    ask = fill(rng.choice(templates.OF_TEXT[kind]), slots(rng) | {"word": word_in_text(rng, material)})
    return Prompt(kind, fill(rng.choice(templates.TEXT_FRAMES), {"ask": ask, "text": material}))


def _material(rng: random.Random, written: Sequence[str], slotted: Sequence[str], values: Mapping[str, str]) -> str:
    if not written or rng.random() < WITH_SLOTS:
        return fill(rng.choice(slotted), values)
    return rng.choice(written)


def slots(rng: random.Random) -> dict[str, str]:
    """A random value for every slot name that templates use; numbered slots differ from each other."""
    topic, topic2 = rng.sample(words.TOPICS, 2)
    name, other, name2 = rng.sample(words.NAMES, 3)
    city, city2 = rng.sample(words.CITIES, 2)
    date, date2 = rng.sample(words.DATES, 2)
    amount, amount2 = rng.sample(words.AMOUNTS, 2)
    product, product2 = rng.sample(words.PRODUCTS, 2)
    noun, noun2 = rng.sample(words.CODE_NOUNS, 2)
    verb = rng.choice(words.CODE_VERBS)
    numbers = {"a": str(rng.randint(2, 99)), "b": str(rng.randint(2, 12)), "number": str(rng.randint(3, 12))}
    return numbers | {
        "topic": topic,
        "topic2": topic2,
        "name": name,
        "other": other,
        "name2": name2,
        "city": city,
        "city2": city2,
        "date": date,
        "date2": date2,
        "amount": amount,
        "amount2": amount2,
        "product": product,
        "product2": product2,
        "noun": noun,
        "noun2": noun2,
        "Noun": noun.capitalize(),
        "verb": verb,
        "things": rng.choice(words.THINGS),
        "code_task": rng.choice(words.CODE_TASKS),
        "new_name": f"{rng.choice(words.CODE_VERBS)}_{noun2}",
    }


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put values into ``{slot}`` marks, once and without looking into what was put in; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda mark: values.get(mark[1], mark[0]), template)


def word_in_text(rng: random.Random, text: str) -> str:
    """A word of the text that one could ask about: a capitalised or a long one."""
    candidates = re.findall(r"\b(?:[A-Z][a-z]{3,}|[a-z]{6,})\b", text)
    return rng.choice(candidates) if candidates else "it"


def names_in_code(rng: random.Random, code: str) -> dict[str, str]:
    """A variable of the code that one could ask to rename."""
    candidates = re.findall(r"\b([a-z_]\w*)\s*=[^=]", code) + re.findall(r"def \w+\((\w+)", code)
    return {"variable": rng.choice(candidates) if candidates else "result"}


def as_text(answer: str) -> str | None:
    """Material from the target's answer: up to the last whole sentence; None when too little is left."""
    ends = [match.end() for match in re.finditer(r"[.!?\"](?=\s|$)", answer)]
    text = answer[: ends[-1]].strip() if ends else ""
    return text if len(text) >= 80 else None


def as_code(answer: str) -> str | None:
    """The first fenced block of an answer, or all of it where there is no fence; whole lines only."""
    fenced = re.search(r"```\w*\n(.*?)(```|$)", answer, flags=re.DOTALL)
    code = fenced[1] if fenced else answer
    if not code.endswith("\n"):
        code = code.rpartition("\n")[0]  # cut off in mid-line
    code = code.strip("\n")
    return code if len(code) >= 40 else None


def as_turn(text: str) -> str | None:
    """A user's turn that the target wrote, unless it is hardly one."""
    text = text.strip()
    return text if len(text) >= 12 else None
