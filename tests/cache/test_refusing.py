"""Answers that say that there is none, and those that only sound like it."""

from __future__ import annotations

import pytest

from forebay.cache.refusing import LONGEST, refuses

REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "Sorry, I cannot provide that information.",
    "I can't assist with that.",
    "I am not able to provide medical advice.",
    "As an AI language model, I cannot give financial advice.",
    "Unfortunately, I am unable to answer this question.",
    "I apologize, but I'm not comfortable discussing that.",
    "I won't help with that.",
    "We're sorry, we can't process this request.",
    "I'm sorry, I don't have information about that product.",
    "I can’t help with creating malware.",
    "Sorry — I'm not allowed to share that.",
    "抱歉，我无法回答这个问题。",
    "对不起，我无法满足您的请求。",
    "作为人工智能助手，我不能讨论政治话题。",
    "我不能帮助你做这件事。",
    "很遗憾，我暂时无法为您提供该服务。",
    "这个问题我无法回答，我们换个话题聊聊吧。",
    "根据提供的资料，我无法回答这个问题。",
)
ANSWERS = (
    "You can't return an item after 30 days.",
    "No, you cannot cancel an order once it ships.",
    "No. Refunds can't be made after 30 days.",
    "We can't ship to PO boxes, but we deliver to all homes.",
    "Sorry to hear that! To reset your password, open Settings and choose Security.",
    "I'm sorry to hear about your loss. Here is how to close the account: call us.",
    "Open Settings, then Invoices.",
    "I recommend restarting the router. If you cannot connect, call support.",
    "Unfortunately, the item is out of stock until spring.",
    "The function cannot return None.",
    "You are not able to change the name after registration.",
    "I can help with that. Open Settings.",
    "Sorry for the delay: refunds take five days.",
    "To unsubscribe, click the link at the bottom. I cannot stress enough to save your data first.",
    "抱歉给您带来不便，请在设置中重置密码。",
    "您好，发票可以在订单页面开具。",
    "不能，订单发货后不能取消。",
    "对不起，您的商品已经发货，可以申请退货。",
    "无法登录时，请先重置密码。",
    "如果您无法提供发票，可以使用收据。",
    "我们支持七天无理由退货。",
    "根据规定，发票不能重复开具。",
    "您好，账户注销后不能恢复。",
    "我们不能保证送达时间。",
    "作为会员，您可以享受八折优惠。",
    "No problem! I can help: go to the order page.",
    "I'd say no: the warranty does not cover water.",
    "我建议您先重启路由器，如果仍然无法连接，请联系客服。",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_seen(text: str) -> None:
    assert refuses(text)
    assert refuses("\n" + text)
    assert not refuses(text + " But see:" + " here" * LONGEST)


@pytest.mark.parametrize("text", ["", *ANSWERS])
def test_an_answer_is_none(text: str) -> None:
    assert not refuses(text)
