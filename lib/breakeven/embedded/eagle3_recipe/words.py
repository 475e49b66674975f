"""Word lists that seed the requests: what texts, code and questions are about."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    """One entry a line or between semicolons."""
    return [entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip()]


TOPICS = _words("""
volcanoes; honey bees; the history of chess; solar panels; the Roman empire; sourdough bread; electric cars
coral reefs; job interviews; jazz music; the water cycle; black holes; public libraries; marathon training
the printing press; houseplants; city buses; migraine headaches; open-source software; the Silk Road; penguins
remote work; glaciers; the French Revolution; vegetarian cooking; bicycle repair; the stock market; dreams
lighthouses; vaccines; medieval castles; online privacy; mountain climbing; tea ceremonies; plastic waste
the moon landing; bird migration; pottery; insomnia; wind turbines; street food; the human heart; detective novels
earthquakes; learning a language; beekeeping; the Great Wall of China; home insurance; school lunches; photography
ancient Egypt; robotics; rainforests; tax returns; swimming lessons; classical music; genetic testing
farmers' markets; satellites; board games; the Cold War; soil erosion; hotel reviews; neural networks; knitting
desert animals; the Olympic Games; databases; wildfires; stage fright; recycling; family budgets; the Renaissance
electric guitars; moving house; fossils; yoga; the immune system; container ships; film festivals; cheese making
snowstorms; customer service; cryptography; the Industrial Revolution; bees and flowers; museums; dog training
the speed of light; garden ponds; air travel; meditation; coffee roasting; whales; the periodic table; a school trip
noise pollution; railway stations; video games; the nervous system; woodworking; tide pools; salary negotiation
comets; the Vikings; subscription boxes; urban gardens; fear of flying; spreadsheets; migration to cities
the Amazon river; newspapers; cats; hiking boots; time zones; sleep; group projects; space telescopes; rivers
credit cards; ballet; wetlands; friendship; weather forecasts; chocolate; a broken printer; antibiotics; rural doctors
bridges; horror films; desalination; wedding planning; dinosaurs; cloud storage; compost; football
the Mediterranean diet; ocean currents; screen time; handwriting; elections; smartphone batteries; mushrooms
traffic jams; poetry; nuclear energy; a community theatre; bread prices; submarines; allergies; origami; mangroves
exam stress; watches; gravity; elephants; fashion; archaeology; podcasts; first aid; version control; flood defences
skateboarding; rice farming; the gold rush; volunteering; quantum computers; a lost suitcase; violins; tax on sugar
polar bears; maps; energy drinks; grandparents; running shoes; the telegraph; painting walls; butterflies
student loans; opera; garbage collection; monsoons; chess openings; unit tests; shared flats; eyesight; clay tablets
sheep farming; night shifts; salt; the Pacific Ocean; karaoke; startup funding; bats; public speaking; camping
hurricanes; magnets; a hospital visit; ferry timetables; tomatoes; the brain; calendars; wolves; translation
digital cameras; sand dunes; pirates; rent control; car maintenance; ice cream
""")

THINGS = _words("""
fruits; European capitals; programming languages; kitchen tools; board games; famous painters; musical instruments
trees; ocean animals; healthy snacks; books for teenagers; sports; camping gear; vegetables; planets; study habits
tourist sights in Italy; birds; household chores; spices; inventions; dog breeds; breakfast dishes; web frameworks
sources of energy; job titles in a hospital; rivers; desserts; exercises without equipment; holidays
questions for an interview; types of cloud; ways to save water; icebreakers for a meeting; fabrics
mammals that live in cold places; card games; soups; constellations; phone features; safety rules for a laboratory
reasons to learn history; gifts for a friend; indoor plants; metals; features of a good teacher; ancient civilisations
common data structures; low-cost hobbies; cheeses; words for happy; bones in the body; items for a first-aid kit
Python libraries; adjectives for weather; ingredients for a pizza; vehicles; mistakes in a presentation
email subject lines; names for a cafe; team-building activities; vitamins; dances; insects
""")

NAMES = _words("""
Amara Okafor; Liam Byrne; Sofia Rossi; Kenji Tanaka; Priya Nair; Tomas Novak; Chloe Martin; Omar Haddad; Ingrid Larsen
Mateo Silva; Grace Kim; Peter Schmidt; Leila Farouk; Daniel Weiss; Hana Suzuki; Victor Petrov; Maya Cohen; Samuel Osei
Elena Popescu; Jack Turner; Nadia Rahman; Hugo Lefevre; Emily Clarke; Wei Zhang; Fatima Zahra; Noah Jensen
Rosa Delgado; Anders Holm; Zoe Papadaki; Ivan Kovac; Aisha Bello; Lucas Pereira; Mei Lin; George Hall; Anna Kowalska
Yusuf Demir; Clara Vogel; Ben Foster; Isabel Torres; Raj Mehta
""")

CITIES = _words("""
Lisbon; Nairobi; Osaka; Toronto; Bergen; Lima; Dublin; Hanoi; Chicago; Krakow; Accra; Melbourne; Seville; Montreal
Tallinn; Mumbai; Denver; Geneva; Cairo; Porto; Leeds; Santiago; Helsinki; Boston; Istanbul; Kyoto; Marseille
Cape Town; Auckland; Vienna; Seattle; Warsaw; Bologna; Bristol; Medellin; Ghent; Phoenix; Salzburg; Lagos; Gothenburg
""")

DATES = _words("""
3 March; 14 July 2021; next Tuesday; the 9th of October; 2024-05-17; Monday at 10:30; 22 November 2019; Friday evening
1 January; June 6th; 12/08/2023; Thursday at noon; 28 February 2022; in early spring; 7 p.m. on Saturday; 30 September
2020-11-02; the last weekend of May; Wednesday at 8:15; 19 April 2018; August 25th; 15 December; in 1987
tomorrow at 4 pm
""")

AMOUNTS = _words("""
$45; 120 euros; 3,500 dollars; $18.99; 75 percent; 12 kilograms; 2.4 million; 640 pounds; 30 minutes; $1,250; 48 pages
9 miles; 16 boxes; $7.50; 350 grams; 22 students; 5 hours; 8,000 visitors
""")

PRODUCTS = _words("""
notebooks; desk lamps; running shoes; coffee mugs; office chairs; bicycle helmets; USB cables; garden hoses
wool blankets; tea kettles; phone cases; rain jackets; backpacks; wall clocks; water filters; cutting boards
headphones; picture frames; batteries; yoga mats; printer cartridges; sleeping bags; ladders; tool boxes
""")

TEXT_FORMS = _words("""
a short paragraph about {topic}; a factual paragraph of five sentences about {topic}
the beginning of a story about {topic}; a short news report from {city} about {topic}
a friendly email from {name} to {other} about {topic}
a short product review that mentions {product} and a price of {amount}; a diary entry of {name} about {topic}
a short biography of {name}, a scientist born in {city}
a notice for the residents of {city} about {topic}, with a date and a time; a blog post introduction about {topic}
minutes of a short meeting between {name} and {other} on {date}; an advertisement for {product}
a complaint to a shop in {city} about {product}; a description of a day in {city}
a paragraph that compares two opinions about {topic}; a travel tip for {city}
step by step instructions that have to do with {topic}; a dialogue between {name} and {other} about {topic}
an event announcement: {topic}, {date}, {city}; a short report on how {product} are made
an invitation from {name} for {date}; a paragraph on the causes and effects of {topic}
a simple explanation of {topic} for children; a press release of a company in {city} that sells {product}
a job advertisement from a company in {city}; a recipe with its ingredients
a paragraph about {topic} with three numbers in it; a letter to the editor about {topic}; a short lecture on {topic}
a memo to all staff about {topic}; a fable with a lesson about {topic}
a short scene in which {name} and {other} argue about {topic}; a summary of a book about {topic}
a customer support message about an order of {product} for {amount}; an opinion on {topic} in simple words
a brief history of {topic}; a list of facts about {topic}; frequently asked questions about {topic} with answers
a voicemail message from {name}
""")

CODE_TASKS = _words("""
counts the words in a string; reverses a linked list; finds the largest number in a list
checks whether a string is a palindrome; reads a CSV file and returns its rows; computes the factorial of a number
merges two sorted lists; removes duplicates from a list; converts Celsius to Fahrenheit; validates an email address
flattens a nested list; computes the average of a list of grades; searches a sorted list with binary search
groups words by their first letter; counts vowels; returns the n-th Fibonacci number
downloads a web page and returns its text; writes a dictionary to a JSON file; sorts a list of dictionaries by a key
checks whether a number is prime; parses a date string; computes the total price of a shopping cart
generates a random password; finds the common elements of two lists; counts the lines in a file
computes compound interest; rotates a matrix; finds the longest word in a sentence
converts a Roman numeral to an integer; removes punctuation from text; implements a stack
implements a queue with two stacks; computes the distance between two points; filters the even numbers out of a list
builds a frequency table; capitalises every word; checks for balanced brackets; splits a list into chunks
simulates rolling two dice; keeps a bank account balance; retries a function three times; caches results of a function
renames all files in a folder; finds missing numbers in a range; computes the median
converts a list of pairs to a dictionary; prints a multiplication table; compares two version strings
encodes a string with a Caesar cipher; logs messages with a time; finds anagrams in a list; transposes a matrix
sums the digits of a number; calculates a discount; manages a to-do list; checks whether a year is a leap year
formats a phone number
""")

CODE_NOUNS = _words("""
order; user; item; price; total; record; message; score; student; account; file; task; invoice; sensor; reading
player; ticket; event; book; score; row; city; word; node; point; token; job; device
""")

CODE_VERBS = _words("""
load; compute; update; filter; count; merge; format; validate; collect; sort; send; parse; find; build; check; remove
print; convert; split; select; sum; rename; group; store
""")

TURN_OPENERS = _words("""
What; What is; How; How do I; How can; Why; Why do; Can you; Could you; Please; I; I am; I need; I want to; My; Write
Explain; Give me; Tell me; List; Describe; Is; Are; Do; Does; Who; When; Where; Which; Should; Help; Suggest; Create
Compare; Summarize; Imagine; In; The; A; You are; Let's; If; Design; Plan; Make; Rewrite; Translate; Generate; Provide
Find; Identify; Discuss; Calculate; Solve; Write a Python; Write a short; Hi; Hello; Thanks; We; Our; There; Based on
Using; Given; Recommend; What are some; What would; How does; How many; Convert; Name; Define; Outline; Draft; Edit
Fix; Review; Act as; As a; For
""")
