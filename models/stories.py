"""Small stories from a grammar: the text that llama-tiny is trained on and measured with.

A story is one expansion of RULES. Two kinds of holes are filled:

    <symbol>      one of the lines of RULES["symbol"], drawn without repeating a line inside a story
    {cast.slot}   the story's cast: who it is about, where it happens, which thing is lost

The cast is drawn once for a story, so a model has to remember who is who: that is what makes the text worth predicting.
Nothing is downloaded, and the text is ours to give away.
"""

import random
import re
from collections.abc import Iterator

from meshrt.records import dataclass

# What models are measured on, and no model is trained or calibrated with.
HELD_OUT_SEED = 1_000_003
HELD_OUT_STORIES = 200


@dataclass(frozen=True)
class Person:
    """A character: a name, what it is ("girl", "fox") and its pronouns."""

    name: str
    kind: str
    female: bool

    def __str__(self) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "she" if self.female else "he"

    @property
    def He(self) -> str:
        return self.he.capitalize()

    @property
    def him(self) -> str:
        return "her" if self.female else "him"

    @property
    def his(self) -> str:
        return "her" if self.female else "his"

    @property
    def His(self) -> str:
        return self.his.capitalize()

    @property
    def himself(self) -> str:
        return self.him + "self"


def words(text: str) -> list[str]:
    return text.split()


def phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split("|")]


GIRLS = words("""
    Anna Bella Clara Daisy Ella Flora Grace Hazel Ida Julia Kate Lily Mia Nora Olive Poppy Rosa Sara Tess Una Vera
    Wendy Zoe Ruby Ivy Luna
""")
BOYS = words("""
    Adam Ben Carl Dan Eli Finn Gus Hugo Ivan Jack Kai Leo Max Ned Oscar Paul Ravi Sam Tom Victor Will Zack Omar Theo
    Felix Milo
""")
ANIMAL_NAMES = words("""
    Pip Dot Biscuit Button Clover Pepper Nutmeg Fern Bramble Moss Pebble Ginger Acorn Tuft Maple Whisker Sandy Patch
    Midge Cricket
""")
ANIMALS = words("""
    fox rabbit bear mouse duck hedgehog squirrel owl kitten puppy turtle goat badger otter frog lamb pony sparrow
""")
ELDERS = (
    ("Grandma", True),
    ("Grandpa", False),
    ("Aunt May", True),
    ("Uncle Joe", False),
    ("Mother", True),
    ("Father", False),
    ("Mrs. Bell", True),
    ("Mr. Reed", False),
    ("the baker", False),
    ("the teacher", True),
    ("the old farmer", False),
    ("the kind nurse", True),
)
COLOURS = words("red blue green yellow purple orange white silver golden brown pink")
LOOKS = words("little old shiny round soft wooden striped tiny lovely big funny bright new heavy")
ANIMAL_LOOKS = words("little small tiny young thin grey fluffy brown hungry")
THINGS = words("""
    kite ball drum lantern umbrella whistle hat scarf bell book boat basket button mitten key spoon teapot puppet
    violin top ring bucket blanket map clock crayon arrow ladder wagon
""")
FRAGILE = words("kite drum boat wagon clock puppet ladder basket violin chair swing cart lamp umbrella")
FOODS = phrases("""
    apple pie | honey cake | loaf of bread | bowl of soup | bag of nuts | orange | basket of cherries | plum tart |
    jar of jam | cheese sandwich | bunch of grapes | egg | pot of noodles | slice of melon | bag of popcorn
""")
SPOTS = phrases("""
    under the bench | behind the shed | in the tall grass | beside the well | near the gate | under the stairs |
    behind the door | in the hollow log | below the bridge | next to the pond | inside the barn |
    between two rocks | on the top shelf | under a pile of leaves | at the edge of the field | in the apple tree
""")
HOMES = phrases("""
    in a small village | on a green hill | near a quiet lake | at the edge of a forest | in a busy town |
    beside a river | in a house by the sea | on a sunny farm | in a tall tower | under an old oak tree |
    in a deep valley | at the end of a long road
""")
PLACES = phrases("""
    the park | the meadow | the beach | the forest | the river | the market | the garden | the hill | the lake |
    the old mill | the school | the orchard | the bridge | the field
""")
WEATHER = words("sunny cloudy windy rainy cold warm foggy snowy quiet hot grey misty")
SEASONS = words("spring summer autumn winter")
TIMES = words("morning afternoon evening day")
MOODS = words("happy cheerful curious brave gentle quiet clever kind shy proud careful busy playful stubborn")
SADS = words("sad worried upset lonely tired afraid cross nervous unhappy")
GLADS = words("happy proud glad calm thankful cheerful delighted joyful")
SKILLS = (
    ("swim", "swam", "swimming", "in the water"),
    ("skate", "skated", "skating", "on the ice"),
    ("whistle", "whistled", "whistling", "like a bird"),
    ("juggle", "juggled", "juggling", "with three balls"),
    ("climb", "climbed", "climbing", "up the rope"),
    ("dance", "danced", "dancing", "to the music"),
    ("ride", "rode", "riding", "on the bike"),
    ("sing", "sang", "singing", "in front of people"),
    ("paint", "painted", "painting", "with a thin brush"),
    ("read", "read", "reading", "without any help"),
    ("fly", "flew", "flying", "with the kite"),
    ("row", "rowed", "rowing", "across the lake"),
)
TROUBLES = (
    ("stuck in the mud", "out of the mud"),
    ("caught in a net", "out of the net"),
    ("high up in a tree", "down from the tree"),
    ("at the bottom of a pit", "out of the pit"),
    ("trapped under a branch", "out from under the branch"),
    ("tangled in a bush", "out of the bush"),
    ("stuck in a fence", "out of the fence"),
    ("alone on a rock in the stream", "back to the bank"),
)
TOOLS = phrases("a long rope | a strong stick | a wooden board | a small ladder | a wide blanket | a big basket")
NOISES = (
    ("a soft tapping", "a branch that touched the window"),
    ("a low humming", "a cat asleep on the roof"),
    ("a strange squeak", "the garden gate in the wind"),
    ("a loud thump", "an apple that fell on the step"),
    ("a long howl", "the wind in the chimney"),
    ("a quick scratching", "a mouse with a crumb of bread"),
    ("a sad hoot", "a baby owl on the fence"),
    ("a slow drip", "the old tap in the kitchen"),
)
PLANTS = (
    ("bean", "beans"),
    ("pumpkin", "pumpkins"),
    ("sunflower", "sunflowers"),
    ("carrot", "carrots"),
    ("tulip", "tulips"),
    ("tomato", "tomatoes"),
    ("rose", "roses"),
    ("strawberry", "strawberries"),
    ("pea", "peas"),
    ("turnip", "turnips"),
)
GAMES = phrases("""
    hide and seek | tag | catch | marbles | pirates | kings and queens | jump the rope | chess | leapfrog |
    explorers
""")
GIFTS = (
    ("a paper crown", "paper"),
    ("a wool hat", "wool"),
    ("a birthday card", "paper"),
    ("a clay cup", "clay"),
    ("a shell necklace", "shells"),
    ("a wooden bird", "wood"),
    ("a cake with berries", "flour"),
    ("a picture frame", "wood"),
    ("a warm scarf", "wool"),
    ("a toy ship", "wood"),
)
NUMBERS = words("two three four five six seven eight nine ten")
GUIDES = phrases("""
    a line of ants | the sound of the stream | a bright butterfly | the evening star | the smell of fresh bread |
    the sound of the bells | a trail of white stones | the tracks in the mud
""")

RULES: dict[str, tuple[str, ...]] = {
    "story": tuple(
        f"<open> <{plot}> <end>"
        for plot in words("lost broken storm rescue share skill gift newcomer noise plant astray race")
    ),
    # Who and where. {h} is the hero, {f} the friend, {e} the elder.
    "open": (
        "Once upon a time, there was a(n) {mood} {h.kind} named {h}. {h.He} lived {home}.",
        "Once upon a time, a(n) {mood} {h.kind} named {h} lived {home}. <habit>",
        "There once was a(n) {h.kind} named {h} who lived {home}. <habit>",
        "{h} was a(n) {mood} {h.kind}. {h.He} lived {home}. <habit>",
        "{home.start}, there lived a(n) {mood} {h.kind} named {h}. <habit>",
        "One {weather} morning, a(n) {mood} {h.kind} named {h} woke up early. {h.He} lived {home}.",
        "In the {season}, a(n) {mood} {h.kind} named {h} lived {home}.",
    ),
    "habit": (
        "{h.He} liked to play {game} with {h.his} friends.",
        "Every {time}, {h.he} walked to {place}.",
        "{h.He} loved {skill.ing} more than anything.",
        "{h.He} had a(n) {colour} {other} that {h.he} took everywhere.",
        "All the neighbours knew {h.him} and waved.",
        "{h.He} was always {mood2}, even when it was {weather2}.",
        "{h.He} knew every path to {place}.",
    ),
    # Lost and found.
    "lost": (
        "<lost1> <feelsad> <search> <helper> <found> <foundthanks>",
        "<lost1> <search> <feelsad> <helper> <search2> <found>",
    ),
    "lost1": (
        "One {weather} {time}, {h.he} could not find {h.his} {look} {colour} {thing}.",
        "{h.His} best toy was a(n) {colour} {thing}. But one {time} the {thing} was gone.",
        "One {time}, {h.he} came home from {place} without {h.his} {colour} {thing}.",
        "When {h.he} looked into {h.his} bag, the {look} {thing} was not there.",
    ),
    "search": (
        "{h} looked {spot1}, but the {thing} was not there. {h.He} looked {spot2} and found only a(n) {look2} {other}.",
        "{h.He} searched {spot1} and {spot2}. There was no {thing} at all.",
        "First {h.he} looked {spot1}. Then {h.he} looked {spot2}. The {thing} was nowhere.",
        '"Where is my {thing}?" said {h}. {h.He} looked {spot1} for a long time, but found nothing.',
    ),
    "helper": (
        '{h.His} friend {f} came by. "Do not be {sad}," said {f}. "I will help you look."',
        '{f} the {f.kind} saw that {h.he} was {sad}. "What is wrong?" asked {f}. "I lost my {thing}," said {h}.',
        '"Can you help me?" {h} asked {h.his} friend {f}. "Of course I can," said {f}.',
        'Just then, {h} met {f}, a(n) {mood3} {f.kind}. "Two can look better than one," said {f}.',
    ),
    "search2": (
        "Together they walked back to {place} and looked at every stone.",
        "They asked {e}, but {e} had not seen the {thing}.",
        "They looked high and low until their feet were tired.",
        '"Think," said {f}. "Where did you have the {thing} last?" {h} thought and thought.',
    ),
    "found": (
        'At last, {f} looked {spot3}. "Here it is!" {f.he} called. It was the {colour} {thing}!',
        "Then {h} saw something {colour} {spot3}. It was the {thing}!",
        "They found the {thing} {spot3}. It was a bit wet, but it was not broken.",
        "A small bird had put the {thing} {spot3}. {h} laughed and took it back.",
    ),
    "foundthanks": (
        '"Thank you, {f}," said {h}. "You are a good friend."',
        "{h} gave {f} a big hug and put the {thing} in a safe place.",
        '"I will take better care of it," {h} told {f}.',
    ),
    # Broken and mended.
    "broken": ("<broken1> <feelsad> <fixtry> <fixhelp> <fixed>", "<broken1> <fixtry> <feelsad> <fixhelp> <fixed>"),
    "broken1": (
        "One {time}, {h} played with {h.his} {colour} {fragile} and it fell on the ground. Crack! It was broken.",
        "{h.He} had a(n) {look} {fragile} from {e}. One {weather} {time}, a part of the {fragile} came off.",
        "{h} and {h.his} friend {f} were too wild with the {fragile}, and it broke in {number} pieces.",
        "The wind blew hard and threw {h.his} {fragile} against the wall. Now the {fragile} did not work.",
    ),
    "fixtry": (
        "{h.He} tried to fix the {fragile} with glue, but the glue did not hold.",
        "{h.He} tied the {fragile} with a string. It fell apart again.",
        '"I can fix this," said {h}. But {h.he} did not know where to start.',
        "{h} worked on it for {number} hours. It only got worse.",
    ),
    "fixhelp": (
        'So {h.he} took the {fragile} to {e}. "Let us look at it together," said {e}.',
        '{e.start} saw the {fragile} and smiled. "Bring me a hammer and some nails," {e.he} said.',
        '{h.His} friend {f} had an idea. "We need better wood," {f.he} said. They went to {place} to find some.',
        '"Do not hide it," said {f} the {f.kind}. "Ask {e}." So {h} told {e} the truth, and {e} was not angry.',
    ),
    "fixed": (
        "They worked slowly and with care. Soon the {fragile} was as good as new.",
        "{e.start} showed {h.him} how to hold the parts and wait. After a while, the {fragile} was whole again.",
        "They painted it {colour2}, and the {fragile} looked even better than before.",
        'When they were done, the {fragile} worked well. "You did most of it," said {e}. {h} felt {glad}.',
    ),
    # Bad weather.
    "storm": ("<storm1> <storm2> <shelter> <wait> <clear>", "<storm1> <storm2> <feelsad> <shelter> <clear>"),
    "storm1": (
        "One {time}, {h} and {h.his} friend {f} went to {place} to play {game}.",
        "{h} asked {h.his} friend {f} to walk to {place}. They took {food.a} with them.",
        "In the {season}, {h} and {f} the {f.kind} built a small hut near {place}.",
    ),
    "storm2": (
        "Suddenly the sky turned dark. Rain fell and thunder rolled over the hills.",
        "Then a strong wind came. Leaves flew everywhere, and big drops began to fall.",
        "But soon snow fell so thick that they could not see the path.",
        'Black clouds came from the west. "A storm is coming!" cried {f}.',
    ),
    "shelter": (
        '"Quick, over there!" said {h}. They ran and hid {spot1}.',
        "They looked for a dry place. {spot1.start} there was room for both of them.",
        '{f} was {sad}. "Hold my hand," said {h}. Together they ran to the house of {e}.',
        '{e.start} opened the door and called, "Come in, you two! You are wet!"',
    ),
    "wait": (
        "To pass the time, they sang {number} songs and told jokes.",
        "They shared {food.a} and listened to the rain.",
        "{h} told a story about a(n) {small} {animal} until {f} laughed.",
        'They counted the seconds after each flash of light. "It is going away," said {h}.',
    ),
    "clear": (
        "After a while, the storm was over. The sun came out, and there was a rainbow over {place}.",
        "At last the wind stopped. Everything smelled fresh, and the birds sang again.",
        "When it was quiet, they stepped outside. The puddles were as bright as mirrors.",
    ),
    # A small animal in trouble.
    "rescue": (
        "<rescue1> <rescuetry> <rescuehelp> <rescued> <rescuethanks>",
        "<rescue1> <rescuehelp> <rescuetry2> <rescued> <rescuethanks>",
    ),
    "rescue1": (
        "One {weather} {time}, {h.he} heard a cry near {place}. A baby {animal} was {trouble.bad}.",
        "On the way to {place}, {h.he} saw a(n) {small} {animal}. The {animal} was {trouble.bad}.",
        '"Help! Help!" called a small voice. It was a(n) {animal}, and it was {trouble.bad}.',
    ),
    "rescuetry": (
        "{h} pulled and pulled, but {h.he} was not strong enough.",
        "{h.He} tried to reach the {animal}, but {h.his} arms were too short.",
        '"Do not move," said {h}. {h.He} tried {number} times, but it did not work.',
    ),
    "rescuehelp": (
        "So {h.he} ran to get {f}. {f} brought {tool}.",
        '"I need help!" {h} shouted. {f} the {f.kind} came at once with {tool}.',
        "{h} thought hard. Then {h.he} remembered that {e} had {tool}.",
    ),
    "rescuetry2": (
        "At first it did not work, and the {animal} began to shake.",
        '"One, two, three, pull!" they said. Nothing happened.',
        "The {animal} was {sad}, so {h} spoke to it in a soft voice.",
    ),
    "rescued": (
        "They used {tool} and worked together. Slowly, the {animal} came {trouble.out}.",
        "With {tool}, {h} got the {animal} {trouble.out}.",
        "They tried once more, and this time the {animal} came {trouble.out}. It was free!",
    ),
    "rescuethanks": (
        '"Thank you," said the {animal}. "You saved me."',
        "The {animal} jumped for joy and licked {h.his} face.",
        "The next {time}, the {animal} brought {food.a} to say thank you.",
        "From that day on, the {animal} followed {h} to {place}.",
    ),
    # To share or not to share.
    "share": (
        "<share1> <share2> <sharethink> <shared> <shareback>",
        "<share1> <share2> <feelsad2> <sharethink> <shared>",
    ),
    "share1": (
        "One {time}, {e} gave {h.him} {food.a}. It smelled very good.",
        "{h} made {food.a} and sat down {spot1} to eat.",
        "{h.He} bought {food.a} at the market and carried it home.",
    ),
    "share2": (
        '{f} the {f.kind} came by. "I am so hungry," said {f}. "May I have some?" "No," said {h}. "It is mine."',
        "{h.His} friend {f} had nothing to eat. But {h} wanted the whole {food} for {h.himself}.",
        "When {h.his} friend {f} asked for a bite, {h} turned away and hid the {food} {spot2}.",
    ),
    "feelsad2": (
        "{f} walked away and looked very {sad}.",
        "{f} said nothing and sat down alone {spot3}.",
    ),
    "sharethink": (
        "{h.He} took a bite, but it did not taste good. {h.He} thought about {f}.",
        '"If I eat it all, I will be full," thought {h}. "But {f} will be {sad}."',
        "Then {h} remembered the {time} when {f} gave {h.him} a(n) {colour} {other}.",
    ),
    "shared": (
        '"Wait!" called {h}. "I am sorry. Let us share." {h.He} cut the {food} in two, and they ate together.',
        "{h.He} ran after {f} and gave {f.him} the bigger half. {f} smiled from ear to ear.",
        'So {h} put the {food} between them. "One bite for you and one bite for me," {h.he} said.',
    ),
    "shareback": (
        "The next day, {f} brought {number} {plants} and shared them with {h}.",
        '"It tastes better with a friend," said {h}.',
        "After that, {f} showed {h.him} how to play {game}.",
    ),
    # Learning something.
    "skill": (
        "<skill1> <skillfail> <skilltalk> <skillwork> <skilldone>",
        "<skill1> <skillfail> <feelsad> <skilltalk> <skilldone>",
    ),
    "skill1": (
        "{h} wanted to learn to {skill}. All {h.his} friends could {skill}, but {h.he} could not.",
        'One {weather} {time}, {h.he} saw {f} {skill.ing} {skill.where}. "I want to {skill} too," {h.he} said.',
        "There was a big show in the {season}, and {h} wanted to {skill} {skill.where}.",
    ),
    "skillfail": (
        "{h.He} tried, but it was too hard. {h.He} fell down {number} times.",
        "The first time, everything went wrong, and a(n) {mood3} {animal} laughed.",
        "{h.He} tried on a(n) {weather} {time}, and again the next day, but it did not work.",
    ),
    "skilltalk": (
        '"I will never learn it," said {h}. "You will," said {e}. "You only have to try again."',
        '{f} the {f.kind} came and said, "I was bad at {skill.ing} too. Let me show you."',
        '{e.start} sat down beside {h.him}. "Go slowly," {e.he} said. "Do one small part each day."',
    ),
    "skillwork": (
        "So {h} worked on it every {time}. After {number} days, it was a little better.",
        "{h} listened and tried again. {h.He} did not give up.",
        "Every day {h.he} went to {place} and tried {skill.ing} {skill.where}.",
    ),
    "skilldone": (
        "One {time}, it worked! {h} {skill.past} {skill.where}, and everyone clapped.",
        'At last {h} {skill.past} {skill.where} all by {h.himself}. "Look at me!" {h.he} shouted.',
        "On the big day, {h} {skill.past} {skill.where}. {e.start} was very proud of {h.him}.",
    ),
    # A present.
    "gift": ("<gift1> <gift2> <giftbad> <giftgive>", "<gift1> <gift2> <giftbad> <feelsad> <giftgive>"),
    "gift1": (
        "It was almost the birthday of {h.his} friend {f}, but {h} had no money for a present.",
        "{f} the {f.kind} was ill and had to stay in bed. {h} wanted to make {f.him} smile.",
        "Soon it was {season}, and {h} wanted to give {h.his} friend {f} something nice.",
    ),
    "gift2": (
        '"I will make {gift}," {h.he} said. {h.He} got some {gift.of} from {e}.',
        "So {h.he} found some {gift.of} {spot1} and began to make {gift}.",
        "{h.He} sat down with {gift.of} and made {gift} for {number} hours.",
    ),
    "giftbad": (
        "But then {h.he} dropped it, and one side was bent.",
        "It did not look like {h.he} wanted. It was a bit too big, and the {colour} paint ran.",
        "On the way, {h.he} fell into a puddle, and the present got wet.",
    ),
    "giftgive": (
        '{h} gave it to {f} anyway. "Did you make {gift} for me?" asked {f}. "It is the best present of all!"',
        '"I am sorry, it is not very good," said {h}. {f} smiled. "It is {gift}, and you made it. I love it."',
        "When {f} saw {gift}, {f.he} laughed with joy and hugged {h}.",
    ),
    # Somebody new.
    "newcomer": ("<new1> <new2> <newask> <newplay> <newend>", "<new1> <new2> <newask> <newend>"),
    "new1": (
        "One {time}, a new {f.kind} came to {place}. {f.His} name was {f}.",
        "A(n) {f.kind} named {f} moved into the house next door.",
        "On the first day of {season}, {h} saw a(n) {f.kind} near {place}. It was {f}, and nobody knew {f.him}.",
    ),
    "new2": (
        "{f} was shy and stood alone {spot1}.",
        "{f} did not speak to anyone. {f.He} looked {sad}.",
        "Nobody asked {f} to play, and {f.he} only looked at {f.his} feet.",
    ),
    "newask": (
        '{h} walked over. "Hello, I am {h}," {h.he} said. "Do you want to play {game}?" {f} nodded.',
        '"Do you like {food.plain}?" asked {h}. "Yes," said {f} in a small voice. So they shared {food.a}.',
        '{h} showed {f.him} a(n) {colour} {thing}. "You can hold it," {h.he} said. {f} began to smile.',
    ),
    "newplay": (
        "They played {game} until it was dark. {f} was very good at it.",
        "{f} told {h} about {f.his} old home. It was far away, near a(n) {look} bridge.",
        "Then {f} showed {h} how to {skill} {skill.where}. It was fun.",
    ),
    "newend": (
        '"Will you come again?" asked {f}. "Every day," said {h}.',
        "Soon {f} was not shy any more. {f.He} had a friend.",
        "When {e} called them for dinner, they did not want to stop.",
    ),
    # A noise at night.
    "noise": ("<noise1> <noise2> <noisego> <noiseis> <noiseend>", "<noise1> <noise2> <noisetell> <noisego> <noiseis>"),
    "noise1": (
        "One {weather} night, {h.he} lay in bed and heard {noise}.",
        "In the middle of the night, {h} woke up. There was {noise} outside.",
        "One night, {h.he} could not sleep because of {noise}.",
    ),
    "noise2": (
        "{h.He} was {sad} and pulled the blanket over {h.his} head.",
        '"Is it a monster?" {h} whispered. {h.His} heart beat fast.',
        "{h.He} held {h.his} {colour} {thing} tight. There it was again!",
    ),
    "noisetell": (
        '{h} went to {e}. "I am afraid," {h.he} said. "Then we will look together," said {e}.',
        '{h} called {h.his} friend {f}. "I heard it too," said {f}.',
    ),
    "noisego": (
        "{h} took a lamp and opened the door very slowly.",
        "Step by step, {h.he} went down the stairs and looked {spot1}.",
        '"I must be brave," said {h}. {h.He} put on {h.his} {colour2} coat and went outside.',
    ),
    "noiseis": (
        "And what was it? It was only {noise.was}!",
        "There was no monster. There was only {noise.was}.",
        "{h} laughed out loud. All the noise came from {noise.was}.",
    ),
    "noiseend": (
        "{h} went back to bed and slept until the morning.",
        '"Next time I will look first," said {h}, "and be afraid later."',
        "The next day, {h.he} told {h.his} friend {f}, and they both laughed about it.",
    ),
    # A garden.
    "plant": (
        "<plant1> <plant2> <plantwait> <plantgrow> <plantend>",
        "<plant1> <plantwait> <plant2> <plantgrow> <plantend>",
    ),
    "plant1": (
        "In the {season}, {e} gave {h.him} {number} {plant} seeds. {h} put them in the ground {spot1}.",
        "{h} found a(n) {plant} seed near {place} and took it home. {h.He} put it in a(n) {colour} pot.",
        "{h} and {h.his} friend {f} wanted to grow {plants}. They dug a row of holes and put in the seeds.",
    ),
    "plant2": (
        "Every {time}, {h.he} gave them water, but nothing came up.",
        "A week went by. There was only brown earth and one {look} worm.",
        '"Why does it not grow?" asked {h}. {h.He} wanted to dig it up again.',
    ),
    "plantwait": (
        '"Wait," said {e}. "Good things need time."',
        '{h.His} friend {f} said, "Let us sing to the seeds." So they sang every {time}.',
        "It was {weather} for {number} days, and {h} waited and waited.",
    ),
    "plantgrow": (
        "Then one {time}, there was a tiny green leaf! Soon there were {number} leaves.",
        "After the rain, the first {plant} came up. It grew taller than {h}.",
        "In the end, there were so many {plants} that {h} had to get a basket.",
    ),
    "plantend": (
        "{h} gave the best {plant} to {e}.",
        "They made a big dinner with {food.a} and asked the neighbours to come. There were {plants} on every table.",
        '"You were right," {h} told {e}. "It was worth the wait."',
    ),
    # Lost on the way.
    "astray": (
        "<astray1> <astray2> <feelsad> <astraymeet> <astrayhome>",
        "<astray1> <astray2> <astraymeet> <astrayhome>",
    ),
    "astray1": (
        "One {weather} {time}, {h} followed a(n) {colour} butterfly away from {place}.",
        "{h} went to {place} to pick berries. {h.He} walked further and further.",
        "{h.He} was on the way to see {h.his} friend {f}, but {h.he} took the wrong path.",
    ),
    "astray2": (
        "Soon all the trees looked the same, and {h} was lost.",
        "When {h.he} turned around, {h.he} did not know where {h.he} was.",
        "It grew dark, and there was no house and no light.",
    ),
    "astraymeet": (
        'Then a(n) {mood3} {animal} came out of the bushes. "Are you lost?" it asked. "Follow {guide}."',
        "{h} sat down {spot1} and listened. Then {h.he} noticed {guide}.",
        '{h.He} remembered what {e} always said: "If you are lost, look for {guide}."',
    ),
    "astrayhome": (
        "{h} followed {guide} for a long time. At last, {h.he} saw the lights of home, and {e} stood at the door.",
        "So {h.he} followed {guide}, over the hill and past {place2}. There was {h.his} friend {f}, with a lamp!",
        '{guide.start} led {h.him} all the way home. "We looked for you everywhere!" cried {e}.',
    ),
    # A race.
    "race": ("<race1> <race2> <race3> <raceend>",),
    "race1": (
        "One {weather} {time}, there was a race to {place}. {h} and {h.his} friend {f} both wanted to win.",
        '"I am faster than you," said {f} the {f.kind}. "Let us race to {place}," said {h}.',
        "In {season}, there was a boat race. {h} had a(n) {colour} boat, and {f} the {f.kind} had a(n) {colour2} one.",
    ),
    "race2": (
        "{h} was in front from the start. {f} was right behind {h.him}.",
        "At first {h} was slow, but {h.he} did not stop.",
        "They went past {place3}. {h} looked back and saw {f}.",
    ),
    "race3": (
        'Then {f} fell and hurt {f.his} foot. {h} stopped and turned around. "Are you all right?" {h.he} asked.',
        "Suddenly, {h} saw a(n) {animal} on the path. It was {trouble.bad}. {h} stopped to help, and {f} stopped too.",
        'Near the end, {f} could not go on. "Take my hand," said {h}.',
    ),
    "raceend": (
        "They crossed the line together, and {e} gave both of them {food.a}.",
        'They did not win, but {e} said, "You did the right thing."',
        'So nobody came first. "A friend is better than a prize," said {h}, and {f} nodded.',
    ),
    "feelsad": (
        "{h} felt very {sad}.",
        "{h} was so {sad} that {h.he} began to cry.",
        '"Oh no!" said {h}. {h.He} was {sad}.',
        "{h.He} sat down and felt {sad}.",
        "This made {h} {sad}.",
    ),
    "end": (
        "{h} was {glad} again. <moral>",
        "That night, {h} went to bed and felt {glad}.",
        "<moral> And they all went home {glad}.",
        "{h} and {h.his} friends were {glad}, and they played {game} until the sun went down.",
        "From that day on, {h} and {h.his} friend {f} did everything together.",
        "The next day, {h} told {h.his} friends all about it.",
        "It was a(n) {weather2} {time}, but {h} felt {glad}. <moral>",
        "<moral>",
        "The end of the day was {weather2}, and everyone was {glad}.",
    ),
    "moral": (
        "{h} learned that it is good to ask for help.",
        "{h} learned that a friend makes every day better.",
        "{h.He} knew now that being kind is never wrong.",
        "{h} learned to be patient and to try again.",
        "{h.He} never forgot that {season}.",
        "And {h} told this story to everyone in the village.",
        "{h} learned that being {mood2} is not always easy, but it helps.",
    ),
}


class Phrase(str):
    """A phrase of the cast; `start` is the form that can begin a sentence, the others depend on the slot."""

    forms: dict[str, str]

    def __new__(cls, text: str, **forms: str) -> "Phrase":
        phrase = super().__new__(cls, text)
        phrase.forms = {"start": text[:1].upper() + text[1:], **forms}
        return phrase

    def __getattr__(self, name: str) -> str:
        try:
            return self.forms[name]
        except KeyError:
            raise AttributeError(name) from None


def stories(seed: int, count: int) -> Iterator[str]:
    """Yields `count` stories of about 50 to 150 words, the same ones for the same seed. One line each, no newline."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _story(rng)


def _story(rng: random.Random) -> str:
    cast = _cast(rng)
    used: set[str] = set()

    def expand(symbol: str) -> str:
        # A line that was used is not drawn again, so that a story does not repeat itself.
        fresh = [line for line in RULES[symbol] if line not in used]
        line = rng.choice(fresh or RULES[symbol])
        used.add(line)
        return re.sub(r"<(\w+)>", lambda hole: expand(hole[1]), line)

    text = expand("story").format(**cast)
    return re.sub(r"\b([Aa])\(n\) (\w)", _article, text)


def _article(match: re.Match[str]) -> str:
    """`a(n) apple` -> `an apple`. The lists have no words such as hour or useful, where letter and sound differ."""
    letter = match[2]
    return f"{match[1]}{'n' if letter.lower() in 'aeiou' else ''} {letter}"


def _person(rng: random.Random, taken: str) -> Person:
    while True:
        if rng.random() < 0.45:
            person = Person(rng.choice(ANIMAL_NAMES), rng.choice(ANIMALS), rng.random() < 0.5)
        elif rng.random() < 0.5:
            person = Person(rng.choice(GIRLS), "girl", True)
        else:
            person = Person(rng.choice(BOYS), "boy", False)
        if person.name != taken:
            return person


def _cast(rng: random.Random) -> dict[str, object]:
    """Draws who, where and what. Slots of one kind that may meet in one story are drawn to differ."""
    hero = _person(rng, "")
    friend = _person(rng, hero.name)
    elder_name, elder_female = rng.choice(ELDERS)
    thing, other = rng.sample(THINGS, 2)
    spots = rng.sample(SPOTS, 3)
    places = rng.sample(PLACES, 3)
    colours, looks, weather, moods, times = (rng.sample(words, 2) for words in (COLOURS, LOOKS, WEATHER, MOODS, TIMES))
    food = rng.choice(FOODS)
    skill, past, ing, where = rng.choice(SKILLS)
    bad, out = rng.choice(TROUBLES)
    noise, was = rng.choice(NOISES)
    plant, plants = rng.choice(PLANTS)
    gift, of = rng.choice(GIFTS)
    guide = rng.choice(GUIDES)
    animals = [animal for animal in ANIMALS if animal not in (hero.kind, friend.kind)]
    return {
        "h": hero, "f": friend, "e": Elder(elder_name, "", elder_female), "home": Phrase(rng.choice(HOMES)),
        "mood": moods[0], "mood2": moods[1], "mood3": rng.choice(MOODS),
        "sad": rng.choice(SADS), "glad": rng.choice(GLADS), "number": rng.choice(NUMBERS), "game": rng.choice(GAMES),
        "weather": weather[0], "weather2": weather[1], "season": rng.choice(SEASONS), "time": times[0],
        "thing": thing, "other": other, "fragile": rng.choice(FRAGILE), "look": looks[0], "look2": looks[1],
        "colour": colours[0], "colour2": colours[1], "spot1": Phrase(spots[0]), "spot2": spots[1], "spot3": spots[2],
        "place": places[0], "place2": places[1], "place3": places[2],
        "food": Phrase(food, a=f"a(n) {food}", plain=_plain(food)),
        "skill": Phrase(skill, past=past, ing=ing, where=where), "trouble": Phrase(bad, bad=bad, out=out),
        "tool": rng.choice(TOOLS), "noise": Phrase(noise, was=was), "plant": plant, "plants": plants,
        "gift": Phrase(gift, of=of), "guide": Phrase(guide),
        "small": rng.choice(ANIMAL_LOOKS), "animal": rng.choice(animals),
    }  # fmt: skip


class Elder(Person):
    """A grown-up: "the baker" and "Grandma" stand where a name stands, and {e.start} begins a sentence."""

    @property
    def start(self) -> str:
        return self.name[:1].upper() + self.name[1:]


def _plain(food: str) -> str:
    """What one likes: of `bag of nuts` the nuts, of `orange` the oranges."""
    if " of " in food:
        return food.split(" of ")[1]
    return food + ("es" if food.endswith(("ch", "s")) else "s")


if __name__ == "__main__":
    for story in stories(0, 5):
        print(story, end="\n\n")
