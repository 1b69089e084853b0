"""Telling languages apart without a model."""
# ruff: noqa: RUF001

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.rewards.ifeval.languages import LANGUAGES, languages, script

SPOKEN = {
    "en": "Cats sleep a lot, and they are happy when the sun shines on them. You can see it every day.",
    "de": "Katzen schlafen viel, und sie freuen sich, wenn die Sonne scheint. Das kann man jeden Tag sehen.",
    "es": "Los gatos duermen mucho y están contentos cuando brilla el sol. Se puede ver todos los días.",
    "pt": "Os gatos dormem muito e ficam felizes quando o sol brilha. Você pode ver isso todos os dias.",
    "fr": "Les chats dorment beaucoup et ils sont contents quand le soleil brille. On peut le voir tous les jours.",
    "it": "I gatti dormono molto e sono felici quando splende il sole. Lo si può vedere ogni giorno con gli amici.",
    "pl": "Koty dużo śpią i są szczęśliwe, kiedy świeci słońce. Można to zobaczyć każdego dnia.",
    "fi": "Kissat nukkuvat paljon ja ovat iloisia, kun aurinko paistaa. Sen voi nähdä joka päivä.",
    "vi": "Mèo ngủ rất nhiều và chúng vui khi trời nắng. Bạn có thể thấy điều đó mỗi ngày.",
    "sw": "Paka hulala sana na wanafurahi jua linapowaka. Unaweza kuona hivyo kila siku katika nyumba za watu.",
    "nl": "Katten slapen veel en zijn blij als de zon schijnt. Dat is elke dag te zien.",
    "sv": "Katter sover mycket och blir glada när solen skiner. Det kan man se varje dag på gatan.",
    "tr": "Kediler çok uyur ve güneş açınca mutlu olurlar. Bunu her gün görmek mümkün.",
    "id": "Kucing banyak tidur dan senang ketika matahari bersinar. Anda bisa melihat itu setiap hari.",
    "ru": "Кошки много спят и радуются, когда светит солнце. Это можно видеть каждый день.",
    "uk": "Коти багато сплять і радіють, коли світить сонце. Це можна бачити щодня.",
    "bg": "Котките спят много и се радват, когато грее слънце. Това може да се види всеки ден.",
    "ar": "القطط تنام كثيرا وتفرح عندما تشرق الشمس. يمكن أن ترى ذلك في كل يوم.",
    "fa": "گربه‌ها زیاد می‌خوابند و وقتی آفتاب می‌تابد خوشحال هستند. این را هر روز می‌توان دید.",
    "ur": "بلیاں بہت سوتی ہیں اور جب سورج نکلتا ہے تو خوش ہوتی ہیں۔ آپ یہ ہر روز دیکھ سکتے ہیں۔",
    "hi": "बिल्लियाँ बहुत सोती हैं और धूप निकलने पर खुश होती हैं। आप इसे हर दिन देख सकते हैं।",
    "mr": "मांजरी खूप झोपतात आणि ऊन पडले की आनंदी होतात. हे रोज पाहायला मिळते आणि ते छान आहे.",
    "ne": "बिरालाहरू धेरै सुत्छन् र घाम लाग्दा खुसी हुन्छन्। तपाईं यो हरेक दिन देख्न सक्नुहुन्छ।",
    "bn": "বিড়াল অনেক ঘুমায় এবং রোদ উঠলে খুশি হয়।",
    "pa": "ਬਿੱਲੀਆਂ ਬਹੁਤ ਸੌਂਦੀਆਂ ਹਨ ਅਤੇ ਧੁੱਪ ਵਿੱਚ ਖੁਸ਼ ਹੁੰਦੀਆਂ ਹਨ।",
    "gu": "બિલાડીઓ ખૂબ ઊંઘે છે અને તડકામાં ખુશ રહે છે.",
    "ta": "பூனைகள் நிறைய தூங்குகின்றன, வெயிலில் மகிழ்ச்சியாக இருக்கின்றன.",
    "te": "పిల్లులు చాలా నిద్రపోతాయి, ఎండలో సంతోషంగా ఉంటాయి.",
    "kn": "ಬೆಕ್ಕುಗಳು ತುಂಬಾ ನಿದ್ರಿಸುತ್ತವೆ ಮತ್ತು ಬಿಸಿಲಿನಲ್ಲಿ ಸಂತೋಷವಾಗಿರುತ್ತವೆ.",
    "ml": "പൂച്ചകൾ ധാരാളം ഉറങ്ങുന്നു, വെയിലിൽ സന്തോഷിക്കുന്നു.",
    "th": "แมวนอนเยอะและมีความสุขเมื่อแดดออก",
    "ko": "고양이는 잠을 많이 자고 햇볕이 나면 행복해합니다.",
    "ja": "猫はよく眠り、日が照ると喜びます。",
    "zh": "猫睡得很多，出太阳的时候很高兴。",
    "he": "חתולים ישנים הרבה ושמחים כשהשמש זורחת.",
    "el": "Οι γάτες κοιμούνται πολύ και χαίρονται όταν λάμπει ο ήλιος.",
}


def test_every_language_of_the_table_has_its_example():
    assert SPOKEN.keys() == LANGUAGES


@pytest.mark.parametrize("name", SPOKEN)
def test_two_sentences_tell_their_language_in_any_case(name: str):
    assert languages(SPOKEN[name]) == {name}
    assert languages(SPOKEN[name].upper()) == {name}


def test_most_letters_decide_the_script():
    assert languages("यह Python में लिखा गया है और बहुत तेज़ है") == {"hi"}
    assert languages("the word नमस्ते is a greeting that you can use") == {"en"}
    assert script("中文 and then かな") == "latin"
    assert script("中文中文かな") == "kana"


@pytest.mark.parametrize("text", ["", "12 + 5 = 17!", "xyzzy plugh", "\ud800\udfff", "🙂🙂"])
def test_an_undecidable_text_has_no_language(text: str):
    assert languages(text) == frozenset()


@pytest.mark.parametrize(
    ("text", "name"), [("Süßes", "de"), ("Łódź", "pl"), ("Cảm ơn", "vi"), ("Яйцы", "ru"), ("शाळा", "mr")]
)
def test_letters_the_others_lack_tell_without_a_common_word(text: str, name: str):
    assert languages(text) == {name}


def test_words_two_languages_share_leave_both():
    assert languages("la") == {"es", "fr", "it", "sw"}


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(st.characters(), max_size=200))
@pytest.mark.slow
def test_any_text_has_an_answer_from_the_table(text: str):
    assert languages(text) <= LANGUAGES
