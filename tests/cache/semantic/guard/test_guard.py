"""What the guard says of pairs of questions: traps of each kind, and questions that differ in nothing but form."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.semantic.guard import FEATURES, compare, read

PAIRS = Path(__file__).parents[4] / "benchmarks" / "cache" / "pairs"

TRAPS = [
    ("number", "发票怎么开", "第 2 张发票怎么开"),
    ("number", "三天内可以退货吗", "七天内可以退货吗"),
    ("number", "How do I install Python 3.1?", "How do I install Python 3.10?"),
    ("number", "Can I use two coupons?", "Can I use 3 coupons?"),
    ("number", "Is it $5 a month?", "Is it $15 a month?"),
    ("unit", "How long is 5 km?", "How long is 5 kg?"),
    ("date", "Are you open at 3 pm?", "Are you open at 5 pm?"),
    ("date", "周三几点开门", "周四几点开门"),
    ("date", "Are you open on Monday?", "Are you open on Tuesday?"),
    ("id", "Where is order A1234?", "Where is order A1243?"),
    ("id", "How do I learn C++?", "How do I learn C#?"),
    ("negation", "怎么开具发票", "怎么不开具发票"),
    ("negation", "How do I get an invoice?", "How do I not get an invoice?"),
    ("negation", "Can I log in?", "Why can't I log in?"),
    ("antonym", "How do I turn on the light?", "How do I turn the light off?"),
    ("antonym", "如何提高信用卡额度", "如何降低信用卡额度"),
    ("antonym", "手机号怎么绑定", "手机号怎么解绑"),
    ("entity", "日本签证怎么办理", "韩国签证怎么办理"),
    ("entity", "How do I cancel my Netflix subscription?", "How do I cancel my subscription?"),
    ("order", "从北京到上海的机票", "从上海到北京的机票"),
    ("order", "张三借给李四", "李四借给张三"),
    ("order", "Does Google own YouTube?", "Does YouTube own Google?"),
    ("order", "Do you ship to Canada?", "Do you ship from Canada?"),
    ("order", "一个男人和两个女人", "一个女人和两个男人"),
    ("order", "龙卷风昨天夜里席卷了青山县北部和白水县南部的村庄", "龙卷风昨天夜里席卷了白水县北部和青山县南部的村庄"),
    ("order", "2 adults and 3 children", "3 adults and 2 children"),
    ("order", "李四被张三欠了多少钱", "李四欠张三多少钱"),
    ("scope word", "Can users delete files?", "Can only users delete files?"),
    ("scope word", "怎么删除照片", "怎么删除所有照片"),
    ("scope word", "Should I eat before training?", "Should I eat after training?"),
    ("question type", "When was the telephone invented?", "Who invented the telephone?"),
    ("question type", "机票改签要多久", "机票改签要多少钱"),
    ("question type", "可以在家办公吗", "怎么申请在家办公"),
    ("scope word", "光合作用是什么", "光合作用是什么，用一句话回答"),
    ("scope word", "What is DNA?", "What is DNA? Answer in one sentence."),
    ("question type", "什么的阳光", "阳光是什么"),
    ("question type", "怎么煮茶", "煮什么茶"),
    ("question type", "樱花节是哪一年办的", "樱花节是哪一天办的"),
    ("question type", "晚会几点开始", "晚会几号开始"),
    ("question type", "What year did the museum open?", "What day did the museum open?"),
    ("question type", "怎么打碎杯子", "杯子打碎了怎么说"),
    ("order", "老师批评了怎么办", "批评老师了怎么办"),
    ("order", "男生喜欢的歌", "喜欢男生的歌"),
    ("antonym", "外地的驾照可以换吗", "外地的驾照可以在本地换吗"),
    ("antonym", "Is it safe to drink hot water?", "Is it safe to drink hot water in cold rooms?"),
    ("scope word", "什么相机最好", "什么相机最好用"),
    ("word", "公众号怎么用", "公众号怎么看"),
    ("word", "端午节怎么过", "端午节怎么来的"),
    ("modality", "Can I bring my dog?", "Must I bring my dog?"),
    ("person", "What is my name?", "What is your name?"),
    ("tense", "Is the store open?", "Was the store open?"),
    ("word", "How do I wash a tie?", "How do I knot a tie?"),
    ("narrower", "Is there parking near the clinic?", "Is there covered parking near the clinic?"),
    ("word", "信用卡怎么激活", "信用卡怎么申请"),
    ("entity", "怎么修改昵称", "怎么修改用户名"),
    ("language", "怎么开具发票", "How do I get an invoice?"),
    ("long", "a " * 2_000, "a " * 2_001),
]
SAME = [
    ("怎么开具发票", "发票如何开"),
    ("请问怎么开具发票？", "怎么开具发票"),
    ("ＷｉＦｉ怎么连接", "wifi怎么连接"),
    ("能不能退款", "可以退款吗"),
    ("这个送不送货", "这个送货吗"),
    ("登录不了怎么办", "无法登录怎么处理"),
    ("密码忘了怎么办", "忘记密码怎么处理"),
    ("1小时30分钟够吗", "90分钟够吗"),
    ("手机号怎么解绑", "怎样解除手机号的绑定"),
    ("什么时候发货", "几时寄出"),
    ("北京到上海的火车票多少钱", "从北京去上海的火车票要多少钱"),
    ("我怎么退款", "你们怎么退款"),
    ("我要退款怎么办", "要退款怎么办"),
    ("风和日丽是什么意思", "风和日丽的意思是什么呢"),
    ("会员到期后怎么续费", "会员到期了怎么续费"),
    ("请病假的流程是什么", "怎么请病假"),
    ("海棠有哪些颜色", "海棠都有哪些颜色"),
    ("晚会哪天开始", "晚会什么时候开始"),
    ("小孩六岁可以办卡吗", "六岁小孩可以办卡吗"),
    ("When did the museum open?", "What year did the museum open?"),
    ("On Mondays, when do you open?", "When do you open on Mondays?"),
    ("What is the difference between tea and coffee?", "What is the difference between coffee and tea?"),
    ("How do you get there?", "How do I get there?"),
    ("How do I reset my password?", "What are the steps to reset my password?"),
    ("How do I reset my pasword", "how can i reset my password??"),
    ("What is the reason for the delay?", "Why the delay?"),
    ("The item is unavailable", "The item is not available"),
    ("Is it 1.5 hours?", "is it ninety minutes"),
    ("How do I switch notifications off?", "How do I turn off notifications?"),
    ("Is delivery possible within 24 hours?", "Hi, is delivery possible within 24 hours? Thanks!"),
]


@pytest.mark.parametrize(("conflict", "a", "b"), TRAPS)
def test_a_difference_that_changes_the_answer_is_named(conflict: str, a: str, b: str) -> None:
    assert (compare(a, b).conflict, compare(a, b).identical) == (conflict, False)
    assert compare(b, a).conflict == conflict


@pytest.mark.parametrize(("a", "b"), SAME)
def test_questions_that_differ_in_form_alone_are_identical(a: str, b: str) -> None:
    for one, other in ((a, b), (b, a)):
        verdict = compare(one, other)
        assert (verdict.conflict, verdict.identical) == ("", True)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("风和日丽是什么意思", "风和日丽的丽是什么意思"),
        ("内卷是什么意思", "被内卷是什么意思"),
        ("厚道是什么意思", "真厚道是什么意思"),
        ("床前明月光的下一句是什么", "床前明月光的上一句是什么"),
        ("你最喜欢的菜是什么", "我最喜欢的菜是什么"),
        ("他是个什么样的人", "她是个什么样的人"),
        ("同桌喜欢我怎么办", "我喜欢同桌怎么办"),
        ("朋友把我拉黑了怎么办", "我把朋友拉黑了怎么办"),
        ("你觉得我怎么样", "我觉得你怎么样"),
        ("刘备救了谁", "谁救了刘备"),
        ("这所学校有研究生吗", "这所学校是研究生吗"),
        ("如何在深圳找工作", "去深圳找工作如何"),
        ("南昌大学怎么了", "怎么去南昌大学"),
        ("护照丢了要挂失吗", "护照丢了挂失要本人去吗"),
        ("运动后喝什么好", "运动后吃什么好"),
        ("一点五乘以四等于多少", "五乘以四等于多少"),
        ("三亚和海口哪个好", "三亚哪个海口好"),
        ("感冒了怎么办", "总是感冒怎么办"),
        ("内卷是什么意思", "反内卷是什么意思"),
        ("我睡觉了", "你睡觉了"),
        ("我想离婚怎么办", "我离婚了怎么办"),
        ("打电话给潘飞", "给潘打电话"),
        ("你是不是傻", "是不是傻"),
        ("给爸爸打电话", "爸爸打电话"),
        ("我想你用日语怎么说", "我也想你用日语怎么说"),
        ("我的朋友用英语怎么说", "朋友用英语怎么说"),
        ("怎么给女生化妆", "女生怎么化妆"),
        ("谁有邀请码", "谁要邀请码"),
        ("吃香蕉好吗", "香蕉好吃吗"),
        ("什么东西不能放卧室", "什么样的卧室不能放东西"),
        ("为什么下载的主题用不了", "为什么不让下载主题"),
        ("有姓名，怎么查身份证号", "有身份证号，怎么查姓名"),
        ("夸张句是什么", "夸张句怎么样"),
        ("What is success?", "What does success mean for you?"),
        ("How do you spend your weekends?", "How did I spend my weekend?"),
        ("What are people afraid of?", "Who are people afraid of?"),
        ("What is a hero?", "What is the hero of heroes?"),
        ("Should I tell him that I like him?", "Should I tell her that I like her?"),
        ("Do boys like tall girls?", "Do girls like tall boys?"),
        ("How ugly do beautiful people think they are?", "How beautiful do ugly people think they are?"),
        ("What if it is not taken after it is sent?", "What if it is not sent after it is taken?"),
        ("Can there be law without justice?", "Can there be justice without law?"),
        ("How do I find the factors of a number?", "How do I find the even factors of a number?"),
    ],
)
def test_persons_roles_and_little_words_are_more_than_form(a: str, b: str) -> None:
    assert not compare(a, b).identical
    assert not compare(b, a).identical


@pytest.mark.parametrize(
    ("a", "b", "loose"),
    [
        ("手机游戏推荐", "游戏手机推荐", True),
        ("怎么删除好友", "好友怎么删除", False),
        ("How do I learn chess?", "What is the best way to learn chess?", True),
        ("What is the best way to learn chess?", "Please, what's the best way to learn chess?", False),
    ],
)
def test_identical_but_for_neighbours_that_change_places_or_the_best_way_is_told_apart(
    a: str, b: str, loose: bool
) -> None:
    verdict = compare(a, b)
    assert verdict.identical
    assert bool(verdict.features[FEATURES.index("derived")]) is loose


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_written_trap_is_identical(language: str) -> None:
    with (PAIRS / f"guard_{language}.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    taken = [(row["a"], row["b"]) for row in rows if row["label"] == "0" and compare(row["a"], row["b"]).identical]
    assert len(rows) > 600
    assert taken == []
    refused = [row for row in rows if row["label"] == "1" and compare(row["a"], row["b"]).conflict]
    assert len(refused) < 0.2 * sum(row["label"] == "1" for row in rows)


def test_what_was_read_once_compares_as_the_text_does() -> None:
    a, b = "How do I reset my password?", "怎么开具发票"
    assert compare(read(a), read(b)) == compare(a, b)
    assert len(compare(a, b).features) == len(FEATURES) == len(set(FEATURES))


@pytest.mark.parametrize("text", ["", " ", "😀", "?!", "的", "the", "ไทย ภาษา", "\ud800", "1" * 500, "a-" * 700])
def test_odd_texts_are_the_same_as_themselves_and_as_nothing_else(text: str) -> None:
    assert compare(text, text).identical
    other = compare(text, "How do I reset my password?")
    assert not other.identical


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80), st.text(alphabet="不 怎么开关发票1二3年月 no t on off to from A B 2.5k$%", max_size=60))
def test_any_text_has_a_verdict_and_it_is_the_same_both_ways(a: str, b: str) -> None:
    assert compare(a, a).identical
    assert compare(b, b).identical
    there, back = compare(a, b), compare(b, a)
    assert there[:2] == back[:2]
    assert not (there.identical and there.conflict)
    assert all(0 <= value < 1_000 for value in there.features)


@pytest.mark.parametrize(
    ("one", "other"), [("How are you", "how are you?"), ("你好", "你好！"), ("Who is she?", "who is she")]
)
def test_the_same_words_are_identical_whatever_ends_them(one: str, other: str) -> None:
    verdict = compare(one, other)
    assert verdict.identical
    assert not verdict.conflict
