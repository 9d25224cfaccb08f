"""What states and questions are made of: the words of tickets, tables and exchanges."""

from typing import NamedTuple


class Team(NamedTuple):
    """Whom a ticket is for.

    Attributes:
        names: what the team is called; a question shows one of them.
        descriptions: of what it does.
        claims: what is true of its tickets and of no other team's.
        problems: what its tickets say, with one of `slots` filled in.
        slots: the words to fill in.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    claims: tuple[str, ...]
    problems: tuple[str, ...]
    slots: tuple[str, ...]


NOUNS = (
    *("lamp", "chair", "table", "phone", "printer", "camera", "clock", "radio", "keyboard"),
    *("screen", "mouse", "heater", "oven", "kettle", "mixer", "vacuum", "washer", "fridge"),
    *("bike", "helmet", "tent", "coat", "jacket", "shirt", "shoes", "hat", "watch", "bag"),
    *("book", "game", "toy", "drill", "saw", "hammer", "mirror", "carpet", "sofa", "desk"),
    *("router", "tablet", "speaker", "battery", "cable", "fan", "scale", "door", "window"),
)
COLORS = ("red", "blue", "green", "yellow", "black", "white", "gray", "brown", "pink", "orange")
THINGS = (
    *(f"the {noun}" for noun in NOUNS),
    *(f"my {noun}" for noun in NOUNS[::2]),
    *(f"the {color} {noun}" for color, noun in zip(COLORS * 2, NOUNS[5:], strict=False)),
    *(f"order {number}" for number in range(1009, 9999, 271)),
)
SERVICES = (
    *("the shop", "the app", "the web site", "my profile", "the portal", "your shop", "your app"),
    *("your web site", "the online shop", "the customer portal", "my page", "the forum"),
)
JOBS = (
    *("driver", "cook", "clerk", "teacher", "nurse", "painter", "writer", "programmer", "tester"),
    *("manager", "cleaner", "designer", "engineer", "seller", "guard", "student", "baker"),
)
TEAMS = (
    Team(
        ("billing", "payments", "accounting", "finance"),
        ("payments and refunds", "invoices and charges", "money", "bills and payments"),
        ("The mail is about a payment.", "The customer writes about money.", "It is about a bill."),
        (
            *(
                "I was charged twice for {it}.",
                "I paid two times for {it}.",
                "I paid too much for {it}.",
            ),
            *("The invoice for {it} is wrong.", "Please send me an invoice for {it}."),
            *("I am still waiting for the refund of {it}.", "I want my money back for {it}."),
            *("The bill for {it} has the wrong amount.", "My payment for {it} was refused."),
            *("There is a charge for {it} on my card that I do not know.",),
            *("Why do I have to pay again for {it}?", "Can I pay for {it} by credit card?"),
            *("You took the money for {it} twice.", "The price on the bill of {it} is too high."),
        ),
        THINGS,
    ),
    Team(
        ("shipping", "delivery", "logistics", "transport"),
        ("parcels and delivery", "where parcels are", "sends parcels", "late and lost parcels"),
        ("The mail is about a delivery.", "Something did not arrive.", "It is about a parcel."),
        (
            *(
                "I did not get {it}.",
                "Where is {it}? It did not arrive.",
                "The parcel with {it} is lost.",
            ),
            *(
                "When will {it} be delivered?",
                "When does {it} arrive?",
                "The parcel with {it} is late.",
            ),
            *(
                "The driver left {it} at the wrong door.",
                "I waited all day for {it}, and nobody came.",
            ),
            *("The tracking of {it} shows nothing.", "You sent {it} to my old address."),
            *("A neighbor got {it} in place of me.", "I still wait for {it} to arrive."),
        ),
        THINGS,
    ),
    Team(
        ("support", "technical support", "help desk", "repairs"),
        ("something does not work", "broken devices", "errors and repairs", "technical problems"),
        (
            "Something does not work.",
            "The mail is about a technical problem.",
            "Something is broken.",
        ),
        (
            *(
                "I cannot start {it}.",
                "I cannot connect {it} to the network.",
                "How do I reset {it}?",
            ),
            *("There is an error on the screen of {it}.", "There is a strange noise in {it}."),
            *(
                "It is broken: {it}.",
                "After the update {it} crashes.",
                "A button of {it} does not work.",
            ),
            *("Since today {it} does not work.", "There is smoke coming out of {it}."),
            *(
                "I pressed the button, but {it} does nothing.",
                "Please repair {it}, it stopped working.",
            ),
        ),
        THINGS,
    ),
    Team(
        ("sales", "orders", "offers", "shop"),
        ("wants to buy", "offers and prices", "new orders", "questions before buying"),
        (
            "The customer wants to buy something.",
            "The mail asks for an offer.",
            "It is about a new order.",
        ),
        (
            *(
                "I want to buy {it}.",
                "How much does {it} cost?",
                "Do you sell {it} in other colors?",
            ),
            *("Can I get a discount if I buy {it} ten times?", "Please send me an offer for {it}."),
            *("Do you still have {it} in your shop?", "I would like to order {it}."),
            *("Which size of {it} should I buy?", "Is there a cheaper offer for {it}?"),
            *("I need a price for {it} and some more.", "I am interested in buying {it}."),
        ),
        THINGS,
    ),
    Team(
        ("returns", "exchange", "returned goods"),
        ("sending things back", "wants to send it back", "exchange and returns"),
        ("The customer wants to send something back.", "The mail is about a return."),
        (
            *("I want to return {it}.", "How do I send back {it}?", "Please take back {it}."),
            *("I do not like {it} and send it back.", "Please send me a label to return {it}."),
            *("I want to exchange {it}, it is too small.", "The color is wrong, I send back {it}."),
            *("Until when can I return {it}?", "I want to exchange {it} for another one."),
            *("I would like to give back {it}.",),
        ),
        THINGS,
    ),
    Team(
        ("accounts", "login", "security", "access"),
        ("passwords and logins", "user accounts", "access and passwords"),
        ("The mail is about an account.", "The customer cannot log in.", "It is about a password."),
        (
            *(
                "I cannot log in to {it}.",
                "I forgot my password for {it}.",
                "My account for {it} is locked.",
            ),
            *("Please delete my account for {it}.", "Someone else uses my account for {it}."),
            *(
                "How do I change my password for {it}?",
                "There is no mail with a new password for {it}.",
            ),
            *(
                "I want to close my account for {it}.",
                "The login to {it} does not accept my password.",
            ),
            *("I have a new mail address, please change my account for {it}.",),
        ),
        SERVICES,
    ),
    Team(
        ("jobs", "human resources", "hiring"),
        ("people who want to work here", "applications", "new employees"),
        ("The mail is about a job.", "Someone wants to work here.", "It is an application."),
        (
            *("I want to work for you as a {it}.", "Do you have a job for a {it}?"),
            *("I send you my application as a {it}.", "Are you looking for a {it}?"),
            *("When do I hear about my application as a {it}?", "I am a {it} and look for work."),
            *("Is the job of the {it} still open?", "How much do you pay a {it}?"),
        ),
        JOBS,
    ),
)
ROUTE_QUESTIONS = (
    *("Which team should answer?", "Who should answer?", "Which team is this for?"),
    *("Where does this ticket belong?", "What is it about?", "Which department should get this?"),
    *("Choose the team.", "Which category fits?", "Route the ticket."),
)
GREETINGS = ("Hello,", "Hi,", "Dear team,", "Good morning,", "Hello!", "Dear all,")
NAMES = (
    *("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Karen"),
    *("Leo", "Maria", "Nina", "Oscar", "Paul", "Rosa", "Sam", "Tina", "Victor", "Wendy", "Zoe"),
)
ENDS = ("Thank you.", "Thanks, {name}", "Regards, {name}", "Best wishes, {name}", "{name}")

URGENCIES = (
    (
        *("There is no hurry.", "It can wait.", "Take your time.", "It is not urgent."),
        *("Answer when you have time.", "Next month is fine.", "I am in no hurry."),
    ),
    (
        *("Please answer this week.", "I need an answer in a few days.", "This week is fine."),
        *("It should be done this week.", "Please look at it in the next days."),
    ),
    (
        *("Please answer today.", "I need it today.", "It is urgent.", "This is urgent."),
        *("I must know it today.", "Please hurry.", "I need an answer by this evening."),
    ),
    (
        *("This is an emergency.", "I need help right now.", "Answer at once!", "Help me now!"),
        *("Everything has stopped, help at once!", "We lose money every minute."),
    ),
)
"""What says how urgent a ticket is, from not at all to an emergency."""
URGENCY_LEVELS: tuple[tuple[tuple[str, ...], tuple[int | None, ...]], ...] = (
    (("can wait", "this week", "today"), (0, 1, 2, 2)),
    (("low", "medium", "high", "critical"), (0, 1, 2, 3)),
    (("later", "this week", "today", "right now"), (0, 1, 2, 3)),
    (("low", "medium", "high"), (0, 1, 2, 2)),
    (("not urgent", "urgent"), (0, None, 1, 1)),
    (("low", "high"), (0, None, 1, 1)),
)
"""Levels, and which one each urgency is; None where it is neither."""
URGENCY_QUESTIONS = (
    *("How urgent is it?", "How urgent is this ticket?", "How soon must we answer?"),
    *("What is the priority?", "Rate the urgency."),
)
URGENCY_CLAIMS: tuple[tuple[str, tuple[bool | None, ...]], ...] = (
    ("It is urgent.", (False, None, True, True)),
    ("The ticket is urgent.", (False, None, True, True)),
    ("It can wait.", (True, None, False, False)),
    ("The customer needs an answer today.", (False, False, True, True)),
    ("It is an emergency.", (False, False, None, True)),
    ("The customer is in a hurry.", (False, None, True, True)),
)
"""Claims, and of which urgencies they are true."""

MOODS = (
    (
        *(
            "I am very angry!",
            "This is the worst shop I know!",
            "I am furious.",
            "This is a shame!",
        ),
        *("Never again!", "Nobody answers my mails!", "I will tell everyone how bad you are."),
    ),
    (
        *("I am not happy about this.", "I am disappointed.", "I expected more."),
        *("That is annoying.", "This is not good.", "I am a little disappointed."),
    ),
    (
        *("Please check this.", "Please tell me what to do.", "I wait for your answer."),
        *("Please let me know.", "What should I do?"),
    ),
    (
        *(
            "I like your shop.",
            "Your service is good.",
            "I am happy with you.",
            "You do a good job.",
        ),
        *("I like to buy here.",),
    ),
    (
        *(
            "You are the best shop in the world!",
            "I love your products!",
            "Your team is wonderful!",
        ),
        *("I am very happy with everything!", "You are great, as always!"),
    ),
)
"""What says how the writer feels, from very bad to very good."""
REVIEWS = (
    (
        *("I hate {it}.", "It broke after one day: {it}.", "I threw away {it}, it is terrible."),
        *("Nothing works in {it}, it is the worst I had.",),
    ),
    (
        *("I do not like {it} much.", "It is too loud for me: {it}.", "I expected more from {it}."),
        *("There are some problems with {it}.",),
    ),
    (
        *("It is neither good nor bad: {it}.", "I have nothing to say about {it}."),
        *("I got {it}, it is as expected.", "It is all right: {it}."),
    ),
    (*("I like {it}.", "It is good: {it}.", "I am content with {it}.", "It works well: {it}."),),
    (
        *("I love {it}!", "It is the best I ever had: {it}.", "It is perfect: {it}!"),
        *("I am very happy with {it}!",),
    ),
)
"""What says how a product is liked, from not at all to very much."""
MOOD_LEVELS: tuple[tuple[tuple[str, ...], tuple[int | None, ...]], ...] = (
    (("very unhappy", "unhappy", "neutral", "happy", "very happy"), (0, 1, 2, 3, 4)),
    (("1 star", "2 stars", "3 stars", "4 stars", "5 stars"), (0, 1, 2, 3, 4)),
    (("very bad", "bad", "fair", "good", "very good"), (0, 1, 2, 3, 4)),
    (("negative", "neutral", "positive"), (0, 0, 1, 2, 2)),
    (("unhappy", "neutral", "happy"), (0, 0, 1, 2, 2)),
    (("unhappy", "happy"), (0, 0, None, 1, 1)),
)
MOOD_QUESTIONS = (
    *("How happy is the customer?", "How satisfied is the customer?", "Rate the mood."),
    *("How many stars would the customer give?", "How does the customer feel?"),
)
MOOD_CLAIMS: tuple[tuple[str, tuple[bool | None, ...]], ...] = (
    ("The customer is angry.", (True, None, False, False, False)),
    ("The customer is happy.", (False, False, None, True, True)),
    ("The customer is satisfied.", (False, False, None, True, True)),
    ("The customer is unhappy.", (True, True, None, False, False)),
    ("The customer complains.", (True, True, None, False, False)),
    ("The text is positive.", (False, False, None, True, True)),
    ("The text is negative.", (True, True, None, False, False)),
)


class Table(NamedTuple):
    """What a table shows of each of its keys, and how one asks for it.

    Attributes:
        fields: the names of the two columns.
        line: a row as a sentence.
        claims: statements about a row, the key before the value.
        of_value: questions for the value of a key.
    """

    fields: tuple[str, str]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    line: str
    claims: tuple[str, ...]
    of_value: tuple[str, ...]


def weather_table(cities: tuple[str, ...], skies: tuple[str, ...]) -> Table:
    """The weather of cities."""
    return Table(
        ("city", "weather"),
        cities,
        skies,
        "In {key} it is {value}.",
        ("In {key} it is {value}.", "The weather in {key} is {value}.", "Is {key} {value}?"),
        ("What is the weather in {key}?", "How is the weather in {key}?", "Weather in {key}?"),
    )


OTHER_TABLES = (
    Table(
        ("order", "status"),
        tuple(map(str, range(10, 100))),
        ("paid", "open", "late", "lost", "sent", "returned", "closed", "new"),
        "Order {key} is {value}.",
        ("Order {key} is {value}.", "The order {key} is {value}.", "Is order {key} {value}?"),
        ("What is the status of order {key}?", "How is order {key}?", "Status of order {key}?"),
    ),
    Table(
        ("thing", "color"),
        NOUNS,
        COLORS,
        "The {key} is {value}.",
        ("The {key} is {value}.", "The color of the {key} is {value}.", "Is the {key} {value}?"),
        ("What color is the {key}?", "Which color has the {key}?", "Color of the {key}?"),
    ),
    Table(
        ("name", "job"),
        NAMES,
        JOBS,
        "Here {key} is a {value}.",
        (
            "It is so that {key} is a {value}.",
            "The job of {key} is {value}.",
            "Is {key} a {value}?",
        ),
        ("What is the job of {key}?", "What does {key} do?", "Job of {key}?"),
    ),
)

RIGHT_CALL_CLAIMS = (
    *(
        "The call does what the user asked for.",
        "The call is right.",
        "The user asked for this call.",
    ),
    *("The assistant calls the right tool with the right arguments.", "Is the call right?"),
)
WRONG_CALL_CLAIMS = ("The call is wrong.", "The user did not ask for this call.")
RIGHT_ANSWER_CLAIMS = ("The answer is right.", "The answer is correct.", "Is the answer right?")
WRONG_ANSWER_CLAIMS = ("The answer is wrong.", "There is a mistake in the answer.")
ANSWER_QUESTIONS = ("How good is the answer?", "Rate the answer.", "Grade the answer.")
ANSWER_LEVELS = ("wrong", "no answer", "right")
BETTER_QUESTIONS = ("Which answer is right?", "Which answer is better?", "Choose the right answer.")
