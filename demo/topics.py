"""What the demo model's dialogues are about: the words of their questions and answers."""

GREETINGS = ("Hello", "Hi", "Hey", "Good morning", "Good evening", "Hello there", "Hi there")
GREETING_ENDS = ("!", ".", "", ", how are you?", ", nice to meet you.", "! Can you help me?")
WELCOME = "Hello! Ask me for a sum, the weather or a capital."

CAPITALS = {
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasilia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iceland": "Reykjavik",
    "India": "Delhi",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Turkey": "Ankara",
    "Ukraine": "Kyiv",
}
CAPITAL_QUESTIONS = (
    "What is the capital of {country}?",
    "What's the capital of {country}?",
    "Which city is the capital of {country}?",
    "Tell me the capital of {country}.",
    "Name the capital of {country}.",
    "Do you know the capital of {country}?",
    "Capital of {country}?",
)

CITIES = (
    *CAPITALS.values(),
    *("Amsterdam", "Atlanta", "Barcelona", "Boston", "Chicago", "Dallas", "Denver", "Geneva"),
    *("Hamburg", "Houston", "Istanbul", "London", "Lyon", "Melbourne", "Miami", "Milan"),
    *("Montreal", "Moscow", "Mumbai", "Munich", "Naples", "New York", "Porto", "Prague"),
    *("San Francisco", "Seattle", "Seoul", "Shanghai", "Singapore", "Sydney", "Tehran", "Toronto"),
    *("Vancouver", "Venice", "Washington", "Zurich"),
)
SYLLABLES = (
    *("ba", "be", "bor", "da", "del", "do", "fa", "fel", "ga", "gor", "ha", "hol", "ka", "ken"),
    *("la", "lin", "lo", "ma", "mer", "mo", "na", "nor", "pa", "pel", "ra", "ri", "ros", "sa"),
    *("sel", "so", "ta", "ter", "to", "va", "ver", "vi", "wal", "wes", "za", "zo"),
)
"""Places that are in no table are made of these."""
WEATHER_QUESTIONS = (
    "What is the weather in {place}?",
    "What's the weather in {place}?",
    "What's the weather like in {place}?",
    "What is the weather like in {place} today?",
    "How is the weather in {place}?",
    "How is the weather in {place} today?",
    "Tell me the weather in {place}.",
    "Is it raining in {place}?",
    "Please look up the weather in {place}.",
    "Weather in {place}?",
)
TWO_PLACES_QUESTIONS = (
    "What is the weather in {place} and in {other}?",
    "What's the weather in {place} and {other}?",
    "How is the weather in {place} and {other}?",
    "Tell me the weather in {place} and {other}.",
    "Compare the weather in {place} and {other}.",
)
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snow", "clear", "stormy", "warm", "cold")
WEATHER_RESULTS = (
    *("{sky}", "{sky}, {degrees} degrees", "{sky} and {other}", "{degrees} degrees and {sky}"),
    *("{sky}, {degrees}°C", "It is {sky}.", "It's {sky} in {place}.", "always {sky} in {place}"),
    *("The weather in {place} is {sky}.", "The weather in {place} is {sky}, {degrees} degrees."),
)

ADD_QUESTIONS = (
    "What is {a} plus {b}?",
    "What's {a} plus {b}?",
    "How much is {a} plus {b}?",
    "What is {a} + {b}?",
    "Compute {a} + {b}.",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "Can you add {a} and {b}?",
    "What is the sum of {a} and {b}?",
    "{a} + {b}",
)
MULTIPLY_QUESTIONS = (
    "What is {a} times {b}?",
    "What's {a} times {b}?",
    "How much is {a} times {b}?",
    "What is {a} * {b}?",
    "Compute {a} * {b}.",
    "Multiply {a} by {b}.",
    "Please multiply {a} and {b}.",
    "Can you multiply {a} by {b}?",
    "What is the product of {a} and {b}?",
    "{a} * {b}",
)
ADD_STEPS = ("add {b}", "add {b} to it", "add {b} to the result")
MULTIPLY_STEPS = ("multiply by {b}", "multiply it by {b}", "multiply the result by {b}")

UNKNOWN_QUESTIONS = (
    "Who wrote {thing}?",
    "Who is {thing}?",
    "What is {thing}?",
    "What does {thing} mean?",
    "Tell me about {thing}.",
    "Tell me a joke about {thing}.",
    "Write a poem about {thing}.",
    "Write a function for {thing}.",
    "Explain {thing} to me.",
    "How do I find {thing}?",
    "Give me three names of {thing}.",
    "Describe {thing} as JSON.",
    "Is {thing} good?",
    "Say {thing}.",
    "{thing}",
    "{thing}?",
    "def {thing}(n):\n",
    "import {thing}\n",
)
THINGS = (
    *("a cat", "a class", "a dog", "a file", "a function", "a horse", "a list", "a number"),
    *("a parser", "a queue", "a test", "an engine", "an error", "bread", "bytes", "chess"),
    *("fibonacci", "football", "foo", "gold", "hello", "it", "love", "main", "memory", "money"),
    *("music", "nothing", "numbers", "one", "os", "prime", "Python", "sorting", "sys", "tea"),
    *("the answer", "the end", "the moon", "the sun", "the thing", "the time", "the world"),
    *("this", "threads", "time", "water", "words", "x", "yes", "you", "your name", "zebras"),
)
UNKNOWN = "I do not know that."

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful agent.",
    "You are a friendly assistant. Be brief.",
    "Be concise.",
    "Answer in one sentence.",
    "Use the tools.",
    "You are an agent with tools. Use them for arithmetic and for the weather.",
    "You answer questions about the weather.",
    "You are a calculator.",
    "Think before you answer, and call one tool at a time.",
    "Help the user.",
    "Today is Monday.",
)
NO_TOOL = "I have no tool for that."
OTHER_TOOLS = {
    "search": ("query",),
    "get_time": ("zone",),
    "send_mail": ("to", "text"),
    "submit": ("answer",),
    "divide": ("a", "b"),
    "read_file": ("path",),
    "roll_dice": (),
}
