"""Language detection by letters and common words; nothing is downloaded.

The script of most letters decides first. If one language of the table owns that script (Korean, Thai, Tamil, ...), that
is the answer. Latin, Cyrillic, Arabic and Devanagari are shared: there, common words and distinctive letters are
counted, and the highest count wins. A sentence or two is enough. Languages outside the table are reported as the
nearest one in it, or as none.
"""
# ruff: noqa: RUF001

from __future__ import annotations

import re
from collections import Counter

import numpy as np

_SCRIPTS = {
    "latin": ("", "41-5A 61-7A C0-24F 1E00-1EFF"),
    "greek": ("el", "370-3FF"),
    "cyrillic": ("", "400-52F"),
    "hebrew": ("he", "590-5FF"),
    "arabic": ("", "600-6FF 750-77F FB50-FDFF FE70-FEFC"),
    "devanagari": ("", "900-963 966-97F"),
    "bengali": ("bn", "980-9FF"),
    "gurmukhi": ("pa", "A00-A7F"),
    "gujarati": ("gu", "A80-AFF"),
    "tamil": ("ta", "B80-BFF"),
    "telugu": ("te", "C00-C7F"),
    "kannada": ("kn", "C80-CFF"),
    "malayalam": ("ml", "D00-D7F"),
    "thai": ("th", "E00-E7F"),
    "hangul": ("ko", "1100-11FF 3130-318F AC00-D7A3"),
    "kana": ("ja", "3041-30FF"),
    "han": ("zh", "3400-4DBF 4E00-9FFF"),
}
"""By script: its language if no other uses it, and its ranges of code points."""
_RANGES = sorted(
    (int(first, 16), int(last, 16), name)
    for name, (_, spans) in _SCRIPTS.items()
    for first, last in (span.split("-") for span in spans.split())
)
_EDGES = np.array([edge for first, last, _ in _RANGES for edge in (first, last + 1)], np.uint32)

_SHARED = {
    "latin": {
        "en": """the of and to in is that it was for on are with as they be at have this from or by but not what we when
            your can there an which do how their if will would you i a he she my our""",
        "de": """der die das und ist in zu den mit von für auf nicht ein eine des dem es im sich auch als an er sie wir
            ich du aus bei nach wie wird sind oder aber hat war dass nur kann""",
        "es": """el la los las de del y un una es que en por para con no se su al lo como más pero sus ya o este porque
            esta entre cuando muy sin sobre también me hasta hay donde desde todo yo""",
        "pt": """o a os as de do da dos das e um uma é que em no na por para com não se seu sua ao mais mas como foi ou
            ele ela são também à pelo pela até isso muito você já eu está""",
        "fr": """le la les de des du et un une est que qui dans en pour pas sur au avec ce il elle je vous nous ne plus
            par sont mais ou se son sa l d c cette être tout""",
        "it": """il lo la i gli le di del della dei e un una è che in per con non si su al più ma come sono anche da nel
            nella questo questa ha o se l d hanno essere alla ti""",
        "pl": """i w na z do nie się to że jest jak o a po za od dla przez ale są tak co jego już czy być może lub oraz
            był który która które tym tego ich ze przy""",
        "fi": """ja on ei se että hän oli mutta joka mitä tämä kun niin myös kuin ovat minä sinä he olla voi jos tai
            vain sen nyt kanssa hyvin sekä ole olen hänen tämän ne jotka koska mikä sitä""",
        "vi": """và của là có không trong cho được một các với này để những người đã khi đến từ bạn tôi như về cũng
            nhiều ra vào hay rất sẽ nếu trên""",
        "sw": """na ya wa kwa ni katika la za kuwa hii cha hiyo kama lakini au pia kutoka yake watu sana kila mimi yangu
            wewe yeye sisi si moja baada kabla kwamba ambayo ambao ili tu hapa vya wake hivyo zaidi wote""",
        "nl": """de het een en van in is dat op te zijn met voor niet aan er om ook als bij of maar dan uit wordt door
            deze naar hij zij wij ik je wat heeft worden""",
        "sv": """och att det i en på är som för av med den inte till om har de ett vi var från så kan men jag du ska
            eller sig han hon""",
        "tr": """ve bir bu için ile da de çok ama olarak daha gibi kadar ne var olan o ben sen biz değil en sonra her ya
            mi şey""",
        "id": """yang dan di ini itu dengan untuk dari pada tidak adalah dalam ke akan saya kita anda juga atau ada bisa
            karena oleh sebagai lebih para mereka""",
    },
    "cyrillic": {
        "ru": """и в не на что с по как это он но для о так мы я ты они она его её был была было может чтобы также или
            если только у же от из к за все""",
        "uk": """і в не на що з та до як це за він від у є але для про так ми я ти вони вона його її був була було може
            щоб також або якщо тільки ви""",
        "bg": """и в не на че с по как това той но за се са е да от ще съм си като или ако само към във със което които
            който беше има тя те ние аз ти до""",
    },
    "arabic": {
        "ar": """في من على إلى أن هذا هذه التي الذي كان كانت ما لا هو هي عن مع كل بعد قد لم هل أو إن ذلك عند كما ثم بين
            أي لكن و هناك يمكن نحن أنا أنت""",
        "fa": """و در به از که این را با است برای آن یک می ها تا بر هم نیز شد شود باشد بود کرد هر ما من او آنها خود دارد
            یا اما اگر چه های کند شما""",
        "ur": """ہے ہیں کا کی کے میں کو سے اور یہ وہ پر نہیں نے بھی تھا تھی تھے ہو کہ جو ایک لیے کر ساتھ تو ہی آپ ہم
            اپنے اس کچھ یا گیا""",
    },
    "devanagari": {
        "hi": """है हैं का की के में को से और यह वह पर नहीं ने भी था थी थे हो कि जो एक लिए कर साथ तो ही आप हम मैं अपने
            इस उस कुछ या बहुत""",
        "mr": """आहे आहेत आणि च्या ची चा चे मध्ये ते ती तो हे ही हा नाही होते होता होती मी आम्ही तुम्ही आपण साठी पण एक
            की तर या त्या काही असे असते व म्हणून झाले मला करा""",
        "ne": """छ छन् हो को का मा ले र लाई पनि छैन हुन्छ गर्न गरेको भएको थियो यो त्यो म हामी तपाईं तपाईंको तर एक गर्ने
            यस बाट सँग लागि अनि हुन् सबै धेरै केही भने नै""",
    },
}
"""By script and language: its most common words."""
_LETTERS = {
    "de": "ß ü",
    "es": "ñ ¿ ¡",
    "pt": "ã õ",
    "fr": "œ",
    "pl": "ą ę ł ś ć ź ż ń",
    "fi": "ää ii uu kk",
    "vi": "ă đ ơ ư ạ ả ấ ầ ẩ ậ ắ ằ ặ ẹ ẻ ế ề ể ệ ỉ ị ọ ỏ ố ồ ổ ộ ớ ờ ở ợ ụ ủ ứ ừ ử ữ ự",
    "sv": "å",
    "tr": "ğ ı ş ü",
    "ru": "ы э ё",
    "uk": "і ї є ґ",
    "bg": "ъ",
    "ar": "ة ى ي ك إ",
    "fa": "پ چ ژ گ ک ی",
    "ur": "پ چ ژ گ ک ی ٹ ڈ ڑ ں ے ھ ہ",
    "mr": "ळ",
}
"""Letters or pairs that related languages lack."""

_OWNED = {name: code for name, (code, _) in _SCRIPTS.items() if code}
LANGUAGES = frozenset({*_OWNED.values(), *(code for group in _SHARED.values() for code in group)})
"""ISO 639-1 codes that `languages` may return."""

_WORD = re.compile(r"[^\s\d!-/:-@\[-`{-~¡-¿–-‧\u200c।॥،؛؟۔、。！？，]+")


def languages(text: str) -> frozenset[str]:
    """Codes of the text's language: usually one, several on a tie, none without evidence."""
    text_script = script(text)
    if text_script in _OWNED:
        return frozenset({_OWNED[text_script]})
    lowered = text.lower()
    words = Counter(_WORD.findall(lowered))
    evidence = {
        code: sum(words[word] for word in common.split())
        + sum(lowered.count(letter) for letter in _LETTERS.get(code, "").split())
        for code, common in _SHARED.get(text_script, {}).items()
    }
    most = max(evidence.values(), default=0)
    return frozenset(code for code, count in evidence.items() if most and count == most)


def script(text: str) -> str:
    """The script of most letters, empty without letters. Any kana make it Japanese, not Chinese."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    histogram = np.bincount(np.searchsorted(_EDGES, codes, side="right"), minlength=2 * len(_RANGES) + 1)
    counts: Counter[str] = Counter()
    for index, (_, _, name) in enumerate(_RANGES):
        counts[name] += int(histogram[2 * index + 1])
    if counts["kana"]:
        counts["kana"] += counts.pop("han", 0)
    name, most = counts.most_common(1)[0]
    return name if most else ""
