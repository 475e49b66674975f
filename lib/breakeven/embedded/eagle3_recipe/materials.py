"""Short records and functions with slots: the irregular things that people paste and a small model never writes."""

from __future__ import annotations

RECORDS = [
    "{name} from {city} ordered {a} {product} on {date}. The total was {amount}. {other} will collect them.",
    "Hi {name},\n\nthe meeting about {topic} moves to {date}. We meet in room {a}. Please bring the "
    "{product}.\n\n{other}",
    "Invoice {a}{b}\nCustomer: {name}\nItems: {a} {product}, {b} {product2}\nDue: {date}\nTotal: {amount}",
    "{name}, {a}, {city}\n{other}, {b}, {city2}\n{name2}, {number}, {city}",
    "- {product}: {amount}\n- {product2}: {amount2}\n- delivery to {city}: {number} dollars",
    "{date} - {name} arrived in {city}.\n{date2} - {other} left for {city2}.\nThe trip cost {amount} in all.",
    "Our shop in {city} is closed on {date}. Orders of {product} are sent from {city2}. Questions? Ask {name} "
    "on 555-0{a}{b}.",
    "The talk on {topic} by {name} starts at {a}:30. After it, {other} speaks about {topic2}. Entry is {amount}.",
    "Dear {name}, thank you for your order of {product}. Sadly one of the {a} pieces is late and comes on {date}. "
    "We will refund {amount}. Kind regards, {other}",
    "name,city,age\n{name},{city},{a}\n{other},{city2},{b}\n{name2},{city},{number}",
    "{name} was born in {city} and studied {topic}. At {a} {name} moved to {city2} and wrote a book on {topic2}. "
    "It sold {amount2} copies in its first year.",
    "Lost: a grey {topic2} bag, near the station in {city}, {date}. Inside were {a} {product}. Call {name}. "
    "Reward: {amount}.",
    "Agenda\n1. {topic} ({name}, {a} minutes)\n2. {topic2} ({other}, {b} minutes)\n3. Date of the next meeting: {date}",
    "i bought {product} last week and they are allready broken. i payed {amount} and {name} in the shop was not "
    "helpfull at "
    "all. i want my money back untill {date}.",
    "Temperature in {city}: {a} degrees, wind from the north. In {city2} it is {b} degrees with rain until {date}.",
    "{name}: Did you read about {topic}?\n{other}: Yes, on {date}. It costs {amount} now.\n{name}: Too much for "
    "{city}.",
    'Review of the {product}: "Light, cheap and strong. I took them to {city} for {a} days." {name}, {number} '
    "of 10 points",
    "{a} people took part in the survey on {topic}. {b} of them live in {city}, the others in {city2}. "
    "Most said that {topic2} is more important. The survey cost {amount}.",
]

SNIPPETS = [
    "def {verb}_{noun}s({noun}s):\n    result = []\n    for {noun} in {noun}s:\n        if {noun} > {a}:\n"
    "            result.append({noun} * {b})\n    return result",
    "def {verb}_{noun}({noun}, limit={a}):\n    total = 0\n    for value in {noun}.values():\n        total += "
    "value\n"
    "    if total > limit:\n        return limit\n    return total",
    "class {Noun}:\n    def __init__(self, name, {noun2}):\n        self.name = name\n        self.{noun2} = "
    "{noun2}\n\n"
    "    def {verb}(self):\n        return self.name + str(self.{noun2})",
    "import json\n\ndef {verb}_{noun}(path):\n    with open(path) as f:\n        data = json.load(f)\n"
    '    return data["{noun}"]',
    "count = 0\nfor {noun} in range({a}):\n    if {noun} % {b} == 0:\n        count = count + 1\nprint(count)",
    "def {verb}_{noun}s({noun}s):\n    counts = {}\n    for {noun} in {noun}s:\n        key = {noun}.lower()\n"
    "        if key in counts:\n            counts[key] += 1\n        else:\n            counts[key] = 1\n    "
    "return counts",
    "def {verb}({noun}, {noun2}):\n    return {noun} / {noun2}",
    "function {verb}{Noun}({noun}s) {\n  let total = 0;\n  for (const {noun} of {noun}s) {\n    total += "
    "{noun}.{noun2};\n"
    "  }\n  return total;\n}",
    "def {verb}_{noun}(text):\n    words = text.split()\n    longest = words[0]\n    for word in words:\n"
    "        if len(word) > len(longest):\n            longest = word\n    return longest",
    "while True:\n    {noun} = input('Enter {noun}: ')\n    if {noun} == 'quit':\n        break\n    "
    "print({verb}({noun}))",
    "SELECT {noun}, {noun2}\nFROM {noun}s\nWHERE {noun2} > {a}\nORDER BY {noun} DESC\nLIMIT {b};",
    "def {verb}_{noun}s(items):\n    for i in range(len(items)):\n        for j in range(i + 1, len(items)):\n"
    "            if items[j].{noun} < items[i].{noun}:\n                items[i], items[j] = items[j], items[i]\n"
    "    return items",
    "def is_valid_{noun}({noun}):\n    if len({noun}) < {a}:\n        return False\n    if '@' not in {noun}:\n"
    "        return False\n    return True",
    "{noun}s = [{a}, {b}, {number}]\nsquares = []\nfor n in {noun}s:\n    squares.append(n * n)\nprint(sum(squares))",
    "def {verb}_all({noun}s, {noun2}=None):\n    try:\n        return [{verb}({noun}, {noun2}) for {noun} in "
    "{noun}s]\n"
    "    except KeyError as error:\n        print(error)",
    "from datetime import date\n\ndef days_since_{noun}({noun}):\n    today = date.today()\n"
    "    delta = today - {noun}.created\n    return delta.days",
]
