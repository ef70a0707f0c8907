"""Questions that are another's, or another time's, and those that only look like it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forebay.cache import intent, language, trying

TAKEN = {
    intent.TIME: (
        "what time is it",
        "What's the weather in Paris?",
        "latest news about AI",
        "Who is the current president of France?",
        "is the store open now?",
        "USD to EUR exchange rate today",
        "How many days until Christmas?",
        "How old is Tom Hanks?",
        "what happened last week",
        "what is the price of gold",
        "今天天气怎么样",
        "现在几点了",
        "最新的汇率是多少",
        "苹果股价",
        "上周发生了什么",
        "他多大了",
        "还有多少天放假",
        "what is trending on twitter",
        "Is the service down?",
        "are there any outages?",
        "which team is leading the league",
        "when is the next train to Boston?",
        "How much is bitcoin worth?",
        "现任美国总统是谁",
        "世界杯谁赢了",
        "下一班地铁几点",
        "服务器挂了吗",
    ),
    intent.PERSONAL: (
        "What is my balance?",
        "What\u2019s my account balance",
        "where is my order",
        "How much do I owe?",
        "show me my last transactions",
        "Can you check my order status",
        "Has my refund been processed?",
        "what's my name?",
        "How many vacation days do I have left?",
        "when is my next appointment",
        "do you remember me",
        "我的余额是多少",
        "我的快递到哪了",
        "帮我查一下我的订单",
        "我还有多少年假",
        "我欠多少钱",
        "我的退款到账了吗",
        "我叫什么名字",
        "Do I have any unread messages?",
        "check the status of my order",
        "我有哪些待办",
    ),
    intent.PLACE: ("restaurants near me", "where is the nearest ATM", "附近有什么好吃的", "离我最近的医院"),
    intent.CHANCE: (
        "generate a strong password",
        "give me a random number between 1 and 10",
        "flip a coin",
        "随机给我一个数字",
        "帮我生成一个密码",
        "抛硬币",
        "tell me a joke",
        "surprise me",
        "给我来个笑话",
        "换一个",
    ),
}
FREE = (
    "",
    "😀",
    "How do I check my balance?",
    "Why was my card declined when I paid in the shop?",
    "I lost my card, what should I do?",
    "What is the capital of France?",
    "How do I turn on dark mode?",
    "current account fees",
    "When will my new card arrive?",
    "How to reset my password",
    "what exchange rate do you use?",
    "explain random forest",
    "How do I generate a random password in python?",
    "can you explain the present perfect tense",
    "what is the next step",
    "how old is the universe",
    "How long does it take to get my refund?",
    "what's a good name for my cat",
    "怎么开具发票",
    "第 2 张发票怎么开",
    "我的订单怎么取消",
    "如何查询我的余额",
    "几点关门",
    "工资几号发",
    "我的密码忘了怎么办",
    "现在完成时的用法",
    "什么是随机森林",
    "几岁可以办身份证",
    "怎样修改我的手机号",
    "在哪里查看我的账单",
    "写一篇新闻稿",
    "我想退货",
    "What is the latest date I can return an item?",
    "How do I get the current date in Python?",
    "sql query to get yesterday's orders",
    "Python怎么获取今天的日期",
    "银行几点下班",
    "请把这句话翻译成英文：我的余额是多少",
    "Do I have to pay tax on this?",
    "Who wrote War and Peace?",
    "how to set a new name for the card",
)


@pytest.mark.parametrize("kind", list(TAKEN))
def test_what_depends_on_when_or_who_is_taken(kind: str) -> None:
    assert {text: intent.of(text) for text in TAKEN[kind]} == dict.fromkeys(TAKEN[kind], kind)


def test_what_is_the_same_for_all_is_not() -> None:
    assert {text: intent.of(text) for text in FREE} == dict.fromkeys(FREE, "")


def test_few_of_many_are_missed_and_few_taken_for_nothing() -> None:
    """736 written before the rules for them, and 160 after."""
    with (Path(__file__).parents[1] / "data" / "intents.tsv").open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    depends = [text for kind, text in rows if kind != "free"]
    free = [text for kind, text in rows if kind == "free"]
    missed = [text for text in depends if not intent.of(text)]
    taken = [text for text in free if intent.of(text)]
    assert (len(depends), len(free)) == (616, 280)
    assert len(missed) <= 0.02 * len(depends), missed
    assert len(taken) <= 0.03 * len(free), taken


@pytest.mark.parametrize(
    "text",
    [
        "現在幾點",
        "今天天氣怎麼樣",
        "我的訂單發貨了嗎",
        "\u200b今\u200b天几号",
        "ｗｈａｔ ｔｉｍｅ ｉｓ ｉｔ",
        "what\u00a0time is it",
        "tod\u00aday's news",
    ],
)
def test_how_it_is_written_does_not_hide_it(text: str) -> None:
    assert intent.of(text)


def test_of_a_text_with_its_material_only_the_ends_count() -> None:
    report = "Sales fell today. " * 100
    assert intent.of("Summarise this text in three points.\n" + "x" * 300 + report + "y" * 300) == ""
    assert intent.of("y" * 2_000 + " What is the weather?") == intent.TIME


@pytest.mark.parametrize(
    "text", ["what my " * 500, "我的" * 2_000, "how many " * 400, " " * 5_000, "to " * 2_000, "i " * 1_000]
)
def test_no_text_takes_long(text: str) -> None:
    """Bounded by the length that is read: a rule that goes back over it again and again would never end here."""
    assert intent.of(text[:800]) in ("", intent.PERSONAL, intent.TIME)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("怎么重启 Docker", "zh"),
        ("Spring Boot JPA 报错", "zh"),
        ("what does 发票 mean", "en"),
        ("How do I reset my password", "en"),
        ("docker restart", "en"),
        ("Wie kann ich mein Passwort ändern?", "de"),
        ("Comment changer mon mot de passe ?", "fr"),
        ("¿Cómo cambio mi contraseña?", "es"),
        ("come posso cambiare la password", "it"),
        ("como posso mudar a minha senha", "pt"),
        ("hoe kan ik mijn wachtwoord wijzigen", "nl"),
        ("jak mogę zmienić hasło", "pl"),
        ("şifremi nasıl değiştirebilirim", "tr"),
        ("как сменить пароль", "ru"),
        ("як змінити пароль у системі", "uk"),
        ("パスワードを変更する方法", "ja"),
        ("비밀번호 변경", "ko"),
        ("كيف أغير كلمة المرور", "ar"),
        ("😀😀", ""),
        ("123 + 4", ""),
        ("", ""),
    ],
)
def test_the_language_of_a_question(text: str, code: str) -> None:
    assert language.of(text) == code


RULES = {
    "_ENGLISH_TIME": trying.TIME,
    "_ENGLISH_STATE": trying.STATE,
    "_ENGLISH_MY": trying.MY,
    "_ENGLISH_ORDER": trying.MY,
    "_ENGLISH_MINE": trying.MINE,
    "_ENGLISH_I": trying.I,
    "_KNOWN": trying.KNOWN,
    "_ENGLISH_PLACE": trying.PLACE,
    "_ENGLISH_HERE": trying.HERE,
    "_ENGLISH_CHANCE": trying.CHANCE,
    "_ENGLISH_MORE": trying.MORE,
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_takes_is_worth_trying(name: str) -> None:
    rule: re.Pattern[str] = getattr(intent, name)

    @settings(max_examples=40)
    @given(st.from_regex(rule), st.sampled_from(("", "'", " please", "?")))
    def taken(found: str, end: str) -> None:
        text = (found + end).lower()
        assume(rule.search(text) is not None)
        assert trying.worth(re.findall(r"\w+", text), text) & RULES[name]

    taken()


def test_most_texts_are_worth_no_rule() -> None:
    text = "explain in two sentences what a forebay is, and name the unit in which its capacity is given."
    assert trying.worth(re.findall(r"\w+", text), text) == 0
    assert trying.worth([], "") == 0
