"""Questions in Chinese and English as users of an assistant put them, of 4 to 60 tokens: as many as are wanted, no two
alike, and another form of each that means the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_EN_ACTS = (
    "cancel|change|renew|return|track|share|delete|restore|export|print|verify|upgrade|pause|transfer|dispute|sign"
)
_EN_THINGS = (
    "order|invoice|subscription|password|delivery address|card|booking|report|contract|account|parcel|ticket|backup"
    "|calendar|licence|refund|phone number|database|insurance policy|prescription|photo album|mailing list|timesheet"
    "|storage plan|flight|hotel room|loan|payslip|mailbox|certificate|wish list|gift voucher"
)
_EN_WHERE = (
    "|in the app|on the website|from abroad|at a branch|by phone|without a receipt|after the deadline|on a tablet"
    "|for a colleague|before the weekend|with a discount code|in the web console|through the partner portal|by letter"
)
_EN_FORMS = (
    "How do I {act} my {thing}{where}?|Can I {act} that {thing}{where}?|What does it cost to {act} the {thing}{where}?"
    "|How long does it take to {act} that {thing}{where}?|Why was I not able to {act} the {thing}{where}?"
    "|Who has to approve it when I want to {act} the {thing}{where}?"
)
_EN_LONG = (
    " I bought it in {month} and the person at the desk told me that this would be possible within {n} days, yet every"
    " time I try it the page says that something went wrong and asks me to come back later."
)
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_ZH_ACTS = "取消|修改|续费|退回|查询|分享|删除|恢复|导出|打印|验证|升级|暂停|转让|申诉|签署"
_ZH_THINGS = (
    "订单|发票|会员|密码|收货地址|信用卡|预订|报告|合同|账户|包裹|门票|备份|日程|驾照|退款|手机号|数据库|保险单|处方|相册"
    "|邮件列表|工时表|存储套餐|机票|酒店房间|贷款|工资单|邮箱|证书|心愿单|礼品券"
)
_ZH_WHERE = (
    "|在手机应用里|在官网上|在国外|在网点|通过电话|没有小票时|过了截止日期后|用平板电脑|替同事|周末之前|用优惠码|在控制台"
    "|通过合作方门户|用信函"
)
_ZH_FORMS = (
    "{where}怎么{act}{thing}？|{where}可以{act}{thing}吗？|{where}{act}{thing}要多少钱？|{where}{act}{thing}需要多长时间？"
    "|为什么{where}不能{act}{thing}？|{where}{act}{thing}由谁审批？"
)
_ZH_LONG = "我是在{n}月买的，柜台的工作人员说{n}天之内都可以办理，可是每次操作页面都提示出错，让我稍后再试。"


class Question(NamedTuple):
    text: str
    again: str
    """The same in another form: nothing but case, width, punctuation and politeness differs."""
    language: str


def questions(seed: int) -> Iterator[Question]:
    """In random order, half Chinese; some 90,000 in all. One in eight is long."""
    rng = random.Random(seed)
    acts, things, wheres, forms = (x.split("|") for x in (_EN_ACTS, _EN_THINGS, _EN_WHERE, _EN_FORMS))
    english = [
        (a, t, w, f)
        for a in range(len(acts))
        for t in range(len(things))
        for w in range(len(wheres))
        for f in range(len(forms))
    ]
    zh_acts, zh_things, zh_wheres, zh_forms = (x.split("|") for x in (_ZH_ACTS, _ZH_THINGS, _ZH_WHERE, _ZH_FORMS))
    for a, t, w, f in rng.sample(english, len(english)):
        where = f" {wheres[w]}" if wheres[w] else ""
        more = rng.random() < 0.125
        text = forms[f].format(act=acts[a], thing=things[t], where=where)
        if more:
            text += _EN_LONG.format(month=rng.choice(_MONTHS.split("|")), n=rng.randrange(2, 60))
        yield Question(text, "Please: " + text[0].lower() + text[1:].replace("?", " ?"), "en")
        text = zh_forms[f].format(act=zh_acts[a], thing=zh_things[t], where=zh_wheres[w])
        if more:
            text += _ZH_LONG.format(n=rng.randrange(2, 12))
        yield Question(text, "请问" + text.replace("？", "?"), "zh")


def between(known: NDArray[np.float32], n: int, seed: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """n vectors among those of real questions, in batches of rows of length 1, and for each the row of `known` that it
    is nearest to by making: what a larger cache holds, without embedding for half an hour."""
    rng = np.random.default_rng(seed)
    batch = 20_000
    for start in range(0, n, batch):
        size = min(batch, n - start)
        first, second, third, fourth = rng.integers(len(known), size=(4, size))
        share = rng.uniform(0.15, 0.45, (size, 1)).astype(np.float32)
        step = rng.uniform(0.05, 0.35, (size, 1)).astype(np.float32)
        found = (1 - share) * known[first] + share * known[second] + step * (known[third] - known[fourth])
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        yield found, first
