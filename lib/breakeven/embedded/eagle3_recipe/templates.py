"""What is asked of a text or of code: instruction templates by kind. ``{text}`` and ``{code}`` stand for the material.

The wording is deliberately uneven (polite, terse, sloppy, with and without labels): people ask in many ways.
"""

from __future__ import annotations

REWRITE = """
Rewrite the text below in a more formal style.
Make this sound friendlier
Rewrite this in the past tense.
Rewrite the following so that it is about {other} instead.
Change every "{word}" to "{other}" and give me the full text.
Replace "{word}" with "{other}" below and keep everything else the same:
Copy the text, but write the first sentence as a question.
Please fix the spelling and grammar, change nothing else.
Shorten this by about half.
Turn this into the first person.
Put it in the third person, please:
Rewrite with simpler words for a ten year old.
Repeat the text with the last sentence removed.
Repeat the text below and add one more sentence at the end.
Same text, but the city is {city} now.
Please use {date} as the new date and send the whole message back.
Rephrase this without using the word "{word}".
Write the same thing as bullet points, keeping the wording where you can.
Make it more persuasive.
Make this polite and professional:
Reword this for a newspaper.
I want the same paragraph in the present tense.
Expand this a little, keep my sentences.
Edit this for clarity. Keep the meaning.
Write it again but everything happens in {city}.
Can you rewrite this as an email to {other}?
Rewrite it as if {other} had written it.
Make the tone more casual
Correct any mistakes and return the corrected version only.
Replace all names by {other} and {name2}.
Change the numbers to round numbers and leave the rest alone.
Use British spelling in this text
Rewrite each sentence to be shorter.
Turn the following into a speech.
Update this text: the price is now {amount}. Everything else stays.
Add a title and repeat the text.
Please paraphrase:
Translate this text into plain, everyday English.
Write the text again with the sentences in reverse order.
Give me a version of this with more detail and one with less.
"""

EXTRACT = """
List all names in this text.
What people are mentioned here?
Extract every number and say what it stands for.
Which places are mentioned? Answer as a comma-separated list.
Pull out the dates.
Find the key facts and return them as JSON.
Return a JSON object with the keys "who", "what", "where" and "when".
Extract the main nouns as a list.
Quote the sentence that mentions "{word}".
Copy the first sentence and the last sentence.
What does the text say about {word}?
Which sentence is the most important one? Quote it exactly.
Give me all adjectives used in this text.
From the text, list each action that somebody takes.
Answer only from the text: what is it about, and who is it for?
Make a table of the facts in the text with the columns item and value.
Extract the contact details, dates and amounts. Write "none" if there are none.
Give the exact words that the author uses for {word}.
List the causes and the effects that are named.
Pick out five keywords.
What questions does this text answer? Quote the part that answers each.
Which products or things are mentioned, and what is said of each?
Find the word "{word}" and copy the sentence around it.
Copy out all sentences with a number in them.
Who did what? One line each.
Fill in this form from the text. Name: Place: Date: Topic:
Extract the steps in order.
Which claims are facts and which are opinions?
Tell me the title this could have and the three main points, in the author's words.
Get the following out of the text: subject, time, place.
Does the text mention {word}? Quote the evidence.
"""

SUMMARIZE = """
Summarize this.
Summarize the passage in one sentence.
tl;dr
Give me a two sentence summary.
What is the main idea of this passage?
Summarise the following text for a busy manager.
Sum this up in three bullet points:
In a few words, what is this about?
Write a headline and a one-line summary.
Give a short summary that a child would understand.
Please write an abstract of at most 40 words.
What should I remember from this?
Condense the text to its key points.
Write a brief overview of the passage below.
Explain the passage in your own words.
Could you summarize what I pasted here? Keep the names.
Main takeaways, please.
State the conclusion of the text and the reason for it.
Summarize in the form of a tweet.
Give me the gist:
Make a short summary with the most important numbers.
What does the author want to say?
"""

TEXT_OTHER = """
Translate the first sentence to French.
Translate this to Spanish:
Is the tone of this text positive, negative or neutral? Explain.
Classify this text: news, story, advert, letter or other.
Write three questions about this text and answer them.
Continue this text.
Write a reply to this.
Write a title for this.
What could happen next?
Make a quiz with four questions from this text.
Turn this into a poem.
Do you agree with it? Why or why not?
What is missing from this text?
How could I improve this text?
Turn this into a table.
Turn the text into a numbered list.
Write a short dialogue based on this.
Who might have written this and for whom?
Sort the things that are mentioned alphabetically.
Make a timeline of it.
"""

CODE_EDIT = """
Rename the function to {new_name} and show the whole code.
Rename the variable {variable} to {new_name}.
Add a docstring.
Add type hints to this function
Add comments that explain each line.
Add error handling for bad input.
Make the function return None when the input is empty.
Can you refactor this to be shorter?
Please rewrite it with a list comprehension.
Replace the loop by a built-in function if possible.
Add a parameter called {new_name} with a default value.
Print the result before it is returned.
Turn this into a class.
Fix the bug if there is one, and return the full code.
Convert this code to JavaScript.
Rewrite this in Java.
Add a test for it.
Write unit tests with pytest for this code.
Add a main block that calls it with an example.
Change the names to camelCase
Raise a ValueError for negative numbers.
Add logging.
Make it faster.
Use f-strings.
Replace the {variable} argument with {new_name} everywhere.
Remove all comments and blank lines.
Make this work with a list of inputs instead of one.
Add an early return at the top.
Clean this up, please. Keep the behaviour.
Handle the case that the file does not exist.
Make it case-insensitive.
Sort the result before returning it.
Write it as a generator.
Extend it so that it also counts how often it was called.
Same code, but with while instead of for.
Add a second function that does the opposite.
Change the constant at the top to {number}.
Put the magic numbers into named constants.
Also return the number of items.
"""

CODE_OTHER = """
What does this code do?
Explain this code step by step.
What is the output?
Is there a bug in here?
Write documentation for this.
What is the time complexity?
List the variables and what they are for.
How would I call this function?
Name three things that could go wrong here.
Review this code.
"""

MAKE = """
List {number} {things}.
Give me a list of {number} {things} with a short note on each.
Name {number} {things}
Make a table of {things} with three columns.
Create a markdown table with {number} {things} and one fact about each.
I need a numbered list: {things}, {number} of them.
Write a table that compares {number} {things} by price and quality.
Bullet list of {things}, please
Write a checklist for {topic}.
Make a timetable for a day about {topic}. Use a table.
Give me a weekly plan about {topic}, one line a day.
List the pros and cons of {topic}.
Put the advantages and disadvantages of {topic} into a table.
What are the steps to learn about {topic}? Number them.
Write a JSON list of {number} {things}.
Give me {things} as CSV with the columns name, type and note.
Show a table with the months and a tip about {topic} for each.
Make an outline for an essay on {topic}.
Give an overview of {topic} as nested bullet points.
Make a glossary of {number} words about {topic}.
Rank {number} {things} and say why.
Sort these by the alphabet and number them: {product}, {product2}, {city}, {name}
Make a table of these people and invent an age and a job: {name}, {other}, {name2}
Make a shopping list for {number} people who like {things}.
Write a schedule for {name}: {date} in {city}, then three more dates.
Write an inventory of {product}, {product2} and three more things with numbers and prices.
List {number} questions about {topic} and answer each in one sentence.
"""

CHAT = """
What is {topic}?
Tell me about {topic}.
Explain {topic} to me like I'm five.
Why does {topic} matter?
How do I get started with {topic}?
I have to give a talk about {topic}. What should I say?
Write a short story about {topic}.
Write a poem about {topic}
Give me some advice on {topic}.
I'm worried about {topic}, what can I do?
What's the best thing about {topic}?
Write an email to {name} about {topic}.
Compare {topic} and {topic2}.
What do {topic} and {topic2} have in common?
Tell me a fun fact about {topic}.
How has {topic} changed over time?
Plan a weekend in {city} for me.
I'm going to {city} with two kids. Ideas?
What is it like to live in {city}?
Write a message to {name} to say sorry for being late.
Write a thank-you note to {name} for the {product}.
How do I choose good {product}?
Sell me some {product} in three sentences.
Pretend you are a guide in {city} and greet me.
Is {topic} good or bad?
Write the opening paragraph of an essay on {topic}.
My friend {name} doesn't like {topic}. How can I change that?
Give me a slogan for {product}.
Explain how {topic} works.
What are common mistakes with {topic}?
Convince me that {topic} is interesting.
Describe {topic} in two sentences.
Who invented {product}?
Write a cover letter for {name}, who wants to work with {topic}.
What should I know about {topic} before I turn 30?
Write a Python function that {code_task}.
How would you write code that {code_task}?
Write a program that {code_task}, and explain it.
Write a toast for the wedding of {name} and {other}.
What can I cook tonight? I have rice and {number} eggs.
I feel tired all day. What would you suggest?
"""

SUMS = """
{name} buys {a} {product} for ${b} each. How much does it cost?
What is {a} plus {b}?
What is {a} times {b}? Show the steps.
A train travels {a} km in {b} hours. How fast is it?
If {name} has {a} {product} and gives {b} away, how many are left?
Convert {a} miles to kilometres.
What is {a} percent of {b}0?
{name} reads {b} pages a day. How long does a book of {a}0 pages take?
A box holds {b} {product}. How many boxes are needed for {a}?
The sum of two numbers is {a} and one is {b}. What is the other?
Sort these numbers: {a}, {b}, {number}, 17, 4, 99
How many minutes are there in {b} hours?
"""


def lines(block: str) -> list[str]:
    """The templates of one kind, one a line."""
    return [line for line in block.splitlines() if line]


OF_TEXT = {
    "rewrite": lines(REWRITE),
    "extraction": lines(EXTRACT),
    "summary": lines(SUMMARIZE),
    "text, other": lines(TEXT_OTHER),
}
OF_CODE = {"code edit": lines(CODE_EDIT), "code, other": lines(CODE_OTHER)}
FREE = {"list and table": lines(MAKE), "chat": lines(CHAT), "sums": lines(SUMS)}

TEXT_FRAMES = [
    "{ask}\n\n{text}",
    "{text}\n\n{ask}",
    '{ask}\n\n"{text}"',
    "{ask}\n\nText: {text}",
    "Text:\n{text}\n\nTask: {ask}",
    '{ask}\n"""\n{text}\n"""',
    "{ask} {text}",
    "Here is a text:\n\n{text}\n\n{ask}",
    "Read this and then do what I ask.\n\n{text}\n\n{ask}",
    "{ask}\n---\n{text}\n---",
    "{ask}\n{text}",
    "I have this:\n{text}\n{ask}",
]
CODE_FRAMES = [
    "{ask}\n\n```python\n{code}\n```",
    "{ask}\n\n```\n{code}\n```",
    "```python\n{code}\n```\n\n{ask}",
    "{ask}\n\n{code}",
    "Here is my code:\n\n```python\n{code}\n```\n\n{ask}",
    "{code}\n\n{ask}",
    "I wrote this:\n```python\n{code}\n```\n{ask}",
    "{ask}\n```python\n{code}\n```",
]
