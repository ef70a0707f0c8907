"""Questions whose answer is another for someone else, at another time or place, or each time anew. English and Chinese.

Such a question is not looked for. A rule that takes one too many costs an engine call; one that misses some gives a
wrong answer, so rules lean to the former. Still, a question about how something is done ("how do I check my balance")
is none of them: what it asks is the same for everyone.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.cache import trying

TIME: Final = "time"
PERSONAL: Final = "personal"
PLACE: Final = "place"
CHANCE: Final = "chance"

_MOST: Final = 800
"""Characters up to which all of a text is read; of a longer one, which brings its material along, the ends: that is
where the asker speaks."""
_END: Final = 200


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TIME_WORDS: Final = _words(
    "today today's todays tonight tonight's tomorrow tomorrow's yesterday yesterday's now currently nowadays recently "
    "lately latest newest recent current this last next present moment breaking live news headlines weather forecast "
    "still until till ago left old time date day month year rate rates price prices these trending worth score winning "
    "leading won down offline delayed sold outage outages delay delays maintenance incident incidents update updates "
    "stock online up next"
)
_STATE_WORDS: Final = _words(
    "temperature air uv pollen sunset sunrise moon standings wait traffic theaters theatres cinemas hot cold "
    "warm humid windy "
    "raining snowing dark sunny happening going new available remaining left since ago "
    "who who's trading price prices bitcoin btc eth ethereum gold silver oil gas petrol dollar euro "
    "yen pound "
    "yuan rupee market markets nasdaq dow stocks status week come fixed resume reopen back out "
    "stock time outage incident update release released launch "
    "eclipse race fight concert tour payday online logged still"
)
_ORDER_WORDS: Final = _words(
    "show tell give list read check get find pull look fetch see display retrieve open view track summarize summarise "
    "compare"
)
_PLACE_WORDS: Final = _words(
    "near nearby nearest close closest around next my here town area city directions within am"
)
_CHANCE_WORDS: Final = _words(
    "joke riddle story fact another more different new surprise number card word letter color colour name "
    "random randomly password passwords passphrase passphrases uuid uuids guid guids dice die coin lottery key keys "
    "token tokens secret secrets again regenerate retry redo continue go keep once rephrase say heads tarot "
    "something pick "
    "shuffle roll poem haiku limerick stories jokes riddles"
)
"""One of these is in every question that the rule takes: most questions have none, and most rules need not be tried."""
_SEPARATES: Final = '\t\n\r!"#$%&()*+,-./:;<=>?@[]^_`{|}~'
_NO_WORD: Final = str.maketrans(dict.fromkeys(_SEPARATES + "，。？！", " "))
_NO_LETTER: Final = bytes.maketrans(_SEPARATES.encode(), b" " * len(_SEPARATES))
_RUN: Final = re.compile(r"\w+")
_APART: Final = _SEPARATES.encode() + b" abcdefghijklmnopqrstuvwxyz0123456789"
"""A text of these alone has no word with a sign in it."""

_ENGLISH_TIME: Final = re.compile(
    r"\b(?:"
    r"today'?s?|tonight(?:'s)?|tomorrow(?:'s)?|yesterday(?:'s)?|currently|nowadays|recently|lately|"
    r"(?<!to the )latest(?! (?:date|time|day) (?:i|we|you|to|by|that|for)\b)|newest|trending|"
    r"most recent|recent (?:news|events?|changes?|updates?|releases?|developments?|versions?)|"
    r"now(?! that\b| on\b|here)|these days|at (?:the moment|present|this (?:moment|time))|as of this|"
    r"this (?:morning|afternoon|evening|week|weekend|month|quarter|year|season|summer|winter|spring|autumn|fall)|"
    r"(?:last|next) (?:night|week|weekend|month|quarter|year|season|summer|winter|spring|autumn|"
    r"monday|tuesday|wednesday|thursday|friday|saturday|sunday|"
    r"january|february|march|april|may|june|july|august|september|october|november|december)|"
    r"current (?:\w+ )?(?:time|date|day|month|year|weather|temperature|prices?|rates?|status|version|events?|news|"
    r"affairs|president|minister|ceo|king|queen|pope|champions?|leader|population|market|traffic|score|situation|"
    r"record|trends?|exchange|offers?|deals?|promotions?|wait|inventory|stock|season|phase|release)|"
    r"what(?:'s| is)? (?:the )?(?:exact )?(?:time|date|day|month|year) (?:is (?:it|this)|it is|in \w+)|"
    r"what(?: is|'s) the (?:time|date)$|"
    r"next (?:train|bus|flight|tram|ferry|holiday|match|game|election|eclipse|full moon|episode|release|launch)|"
    r"how much (?:is|are) (?:\w+ ){1,3}worth|what(?:'s| is) the score|who(?:'s| is) (?:winning|leading|ahead)|"
    r"leading the (?:league|race|polls?)|who won (?:the )?(?:last )?(?:game|match|election|race|cup|super bowl|"
    r"world cup|championship|primary|debate|vote)(?! (?:in|of) \d)|"
    r"(?:is|are) there (?:any |an? )?(?:known |current )?(?:outages?|delays?|maintenance|incidents?|updates?)|"
    r"(?:is|are) (?!there|it possible)(?:[\w.-]+ ){1,4}(?:down|offline|delayed|sold out|out of stock|back online|up)"
    r"(?= *\W*$)|"
    r"breaking|live (?:score|scores|price|prices|updates?|stream|news|traffic)|news|headlines|weather|forecast|"
    r"(?:\d+|a few|some|many|two|three|four|five|six|ten|an?) (?:minutes?|hours?|days?|weeks?|months?) ago|"
    r"(?:days|weeks|months|hours|minutes|long|time) (?:left |remaining )?(?:until|till)|"
    r"(?:hours|minutes|days|weeks|months|time) (?:are |is )?left|"
    r"how old (?:is|are) (?!the (?:universe|earth|world|solar|sun|moon))\w+|"
    r"still (?:open|closed|available|in stock|down|working|valid|alive|on|running|delayed|playing|president|ceo)|"
    r"(?:what(?:'s| is| are)|how much(?: is| are)?)\b.{0,40}\b(?:exchange rates?|interest rates?|mortgage rates?|"
    r"(?:stock|share|gold|silver|oil|gas|petrol|bitcoin|btc|eth|crypto) prices?|prices? of (?:gold|silver|oil|bitcoin|"
    r"btc|ethereum|eth))"
    r")(?!\w)"
)
_ROLE: Final = (
    r"(?:president|prime minister|pm|ceo|cfo|cto|chancellor|king|queen|pope|mayor|governor|champions?|coach|"
    r"manager|captain|"
    r"leader|chairman|chairwoman|chair|owner|director|minister|secretary|richest|tallest|oldest|youngest|holder|"
    r"speaker|ambassador)"
)
_ASKS_STATE: Final = re.compile(r"\W*(?:is|are|has|have|hasn't|haven't|was|were|did) ")
_ENGLISH_STATE_FIRST: Final = re.compile(
    r"\W*(?:is|are) (?!there|it possible)(?:[\w.'-]+ ){1,6}(?:open|closed|on time|in stock|available|running|"
    r"working|injured|"
    r"alive|dead|cancell?ed|raining|dark|finished|over|out|live)(?: (?:yet|now|again|at this hour))?\W*$|"
    r"\W*(?:has|have)(?:n't)? (?!to\b|i\b|you\b|we\b|my\b|our\b)\w|"
    r"\W*(?:was|were) (?!there|it)(?:[\w.'-]+ ){1,4}(?:cancell?ed|delayed|closed|moved|postponed)\W*$|"
    r"\W*did (?:[\w.'-]+ ){1,4}(?:win|lose|beat|raise|cut|pass|resign|announce|release|score)\b(?!.*\b(?:in|"
    r"of) \d{4})"
)
_ENGLISH_STATE: Final = re.compile(
    r"\bwho(?:'s| is| are) (?:the )?(?:\w+ ){0,3}" + _ROLE + r"\b(?! (?:of|in) (?:18|19|20)\d\d)|"
    r"\b(?:share|stock|bitcoin|btc|eth\w*|crypto|gold|silver|oil|gas|petrol) prices?\b|\btrading at\b|"
    r"\bhow much (?:is|does|are|for) (?:an? |one |the )?(?:ounce of |barrel of )?(?:bitcoin|btc|eth\w*|gold|"
    r"silver|oil|gas|petrol)|"
    r"\bhow(?:'s| is| are) (?:the )?(?:dollar|euro|yen|pound|yuan|rupee|markets?|nasdaq|dow|stocks?|traffic)\b|"
    r"\b(?:temperature (?:outside|in|at|there)|air quality (?:in|today|like|at)|uv index|pollen count|sunset|sunrise|"
    r"phase (?:of|is) the moon|standings|wait times?(?: at| for| in)|traffic (?:on|in|like|to|report)|"
    r"in (?:theat(?:er|re)s|"
    r"cinemas))(?!\w)|\bhow (?:hot|cold|warm|humid|windy) is it\b|\bis it (?:raining|snowing|dark|hot|cold|"
    r"sunny|windy)\b|"
    r"\bwhat(?:'s| is) (?:new|happening|going on)\b|\bhow long (?:ago|since)\b|\bwhat week\b|"
    r"\bhow many (?:\w+ ){1,3}(?:are (?:left|online|available|remaining|still|logged)|since|ago)\b|"
    r"\bwhen (?:does|will|is|do|are) .{0,50}\b(?:come out|be back|be up|back up|released|be fixed|resume|reopen)\b|"
    r"\b(?:the|our) last (?:outage|incident|update|release)\b|\bnext (?:\w+ )?(?:launch|eclipse|race|fight|"
    r"concert|tour|payday)\b|"
    r"\bwhat(?:'s| is) the status of (?!code)|\bwho does (?:\w+ ){1,2}(?:play|work|drive|race) for\b"
)
_OWN: Final = (
    r"(?:\w+ ){0,2}(?:balances?|orders?|bills?|invoices?|statements?|transactions?|payments?|deposits?|withdrawals?|"
    r"account (?:number|balance|status|details|limit|id|type)|accounts?|credit (?:limit|score)|limit|subscription|plan|"
    r"usage|quota|appointments?|schedule|calendar|meetings?|bookings?|reservations?|flights?|tickets?|seat|gate|"
    r"shipments?|packages?|parcels?|delivery|deliveries|refunds?|points|miles|rewards|salary|paycheck|payslip|"
    r"pay|bonus|"
    r"taxes|grades?|scores?|results?|policy(?: number)?|claims?|cases?|applications?|visa status|status|progress|"
    r"phone(?: number)?|address|email|emails|inbox|messages?|names?|birthday|age|password|pin|ip|location|manager|"
    r"boss|team|tasks?|todos?|notes?|files?|documents?|(?:vacation|sick|leave|holiday) days?|leave|benefits|contract|"
    r"bmi|weight|height|blood (?:type|pressure|group)|prescriptions?|medication|doctor|mortgage|loan|portfolio|"
    r"investments?|savings?|spending|expenses?|budget|debts?)"
)
_ENGLISH_MY: Final = re.compile(
    r"\b(?:"
    r"(?:what|which|when|where|who)(?:'s| is| are| was| were| will| would)(?: \w+){0,3}? my " + _OWN + r"|"
    r"how (?:much|many|old|tall|far|long)\b.{0,30}\b(?:is|are|was|were|in|on|of|left (?:in|on)) my " + _OWN + r"|"
    r"(?:has|have|is|are|was|were|did|does|will) my " + _OWN + r")(?!\w)"
)
_ENGLISH_MINE: Final = re.compile(
    r"\b(?:what|which|who|when|where)(?:'s|'re| is| are| was| were) (?:my|our)\b|\bwhich of my\b|\bremind me\b|"
    r"^\W*(?:is|are|was|were|has|have) (?:my|our)\b|^\W*(?:my|our) " + _OWN + r"(?: please)?\W*$|^\W*did i\b|"
    r"\bdo you (?:know|have|see) (?:me|my)\b|\bknow about me\b|\bdid (?:you|we) (?:receive|get|talk|discuss|say|"
    r"agree)\b|"
    r"\bhave you (?:got|received|seen) (?:my|our)\b|\bwhen will (?:my|our) (?:order|package|parcel|delivery|"
    r"shipment|refund)\b|"
    r"\b(?:what|which|who|where|when) (?:\w+ )?do i (?:own|live|work|sit|get paid)\b|\bwas i (?:charged|billed)\b|"
    r"\bcalled me\b|\bam i in debt\b|^\W*(?:check |see |show )?balance(?: please)?\W*$|"
    r"^\W*(?:order|ticket|case|tracking|booking|parcel)(?: (?:number|no\.?|id))? *#?\d{3}"
)
_MINE_WORDS: Final = _words(
    "my our did me balance order ticket case tracking booking parcel own live paid work sit charged billed debt"
)
_ENGLISH_I: Final = re.compile(
    r"\b(?:(?:what|which|when|where|who|how much|how many)\b.{0,40}\b(?:do i (?:owe|earn|have(?! to\b))|have i\b|"
    r"did i\b|am i\b)|how (?:much|many)\b.{0,40}\bi (?:owe|spent|spend|earned|have left|ordered|bought|paid)|"
    r"do i (?:still )?have (?:any |an? |some |enough )?(?:\w+ ){0,2}(?:messages?|emails?|mail|meetings?|appointments?|"
    r"notifications?|orders?|bookings?|invoices?|bills?|points|credits?|refunds?|tickets?)(?= *\W*$)|"
    r"who am i|where (?:am i|do i live)|how old am i|do i (?:still )?(?:owe|qualify)|am i (?:eligible|registered|"
    r"enrolled|subscribed|approved|overdrawn)|have i (?:paid|been|got|reached|received)|"
    r"(?:remember|know) who i am)(?!\w)"
)
_ENGLISH_ORDER: Final = re.compile(
    r"(?:^\W*|[.!?,;:\n] *|\b(?:please|can you|could you|will you|would you|i want to|i need to|i would like to|"
    r"i'd like to|let me|just|and|then) +)(?:please )?(?:show|tell|give|list|read|check|get|find|pull up|look up|"
    r"fetch|see|display|retrieve|open|view|track|summari[sz]e|compare)(?: me| us)?(?: all| about)?(?: of)? "
    r"(?:the (?:status|details|balance|history|progress|number|total|list|summary) of )?my " + _OWN + r"\b"
)
_ENGLISH_PLACE: Final = re.compile(
    r"\b(?:(?:near(?:est|by)?|around|next) (?:to )?|close(?:st)? to )(?:me|here|us|my)\b|\bnearby\b|"
    r"\bwhere(?:'s| is| are) (?:the |an? )?(?:nearest|closest)\b|"
    r"\bin my (?:area|city|town|country|region|neighbou?rhood)\b"
)
_ENGLISH_HERE: Final = re.compile(
    r"\b(?:from|around|near|in|at|to|legal|time|deliver) here\b|\bhere\W*$|\bclose by\b|\bin town\b|\bnear this\b|"
    r"^\W*(?:the )?closest \w|\bnearest\b|\bin this (?:area|city|town|region|neighbou?rhood)\b|\bdirections home\b|"
    r"\bmy (?:area|city|town|state|county|country|region|location|neighbou?rhood|zip|postcode|local)\b|"
    r"\bwithin \d+ (?:miles?|km)\b|"
    r"\bwhat (?:city|county|state|country|time ?zone) am i\b"
)
_ENGLISH_MORE: Final = re.compile(
    r"^\W*(?:please )?(?:(?:give|tell|show) me )?(?:another|one more|some more|more|something else|"
    r"a different one|the next|next)"
    r"(?: one| please)*\W*$|^\W*(?:please )?(?:try again|regenerate|again|retry|redo|continue|go on|keep going|"
    r"once more|"
    r"rephrase (?:it|that|this)|say (?:it|that) (?:differently|again|another way))\b.{0,20}$|\bheads or tails\b|"
    r"\btarot\b|\bfun fact\b|"
    r"\bsomething (?:interesting|funny|random)\b|\bpick one\b|\brandomly (?:choose|pick|select|generate)\b|"
    r"^\W*shuffle\b|"
    r"\broll (?:an? )?\d*d\d|\b(?:write|make up|tell|invent)(?: me)? an? (?:\w+ )?(?:poem|story|joke|haiku|"
    r"limerick|riddle)\b"
)
_ENGLISH_CHANCE: Final = re.compile(
    r"\b(?:generate|give me|pick|choose|create|make(?: up)?|suggest|roll|flip|toss|draw|produce|spin|throw)\b.{0,40}"
    r"\b(?:random\w*|passwords?|passphrases?|uuids?|guids?|dice|die|coin|lottery|"
    r"(?:api|secret|access|encryption) keys?|tokens?|secrets?)\b|"
    r"\btell me (?:an?|another|some) (?:\w+ )?(?:jokes?|riddles?|story|stories|facts?)\b|\bsurprise me\b|"
    r"\b(?:give|tell|show|write) me (?:another|one more|a different|a new) (?:one|joke|riddle|story|idea|version)\b|"
    r"\b(?:pick|choose|think of|guess) (?:an?|any) (?:number|card|colou?r|word|letter)\b"
)
_HOW: Final = re.compile(
    r"\bhow (?:do|does|can|could|should|would|to|may|might|must)\b|\bwhere (?:do|can|should|could) i\b|"
    r"\b(?:steps?|ways?|guide|instructions|tutorial|code|function|script|regex|query|sql|program) "
    r"(?:to|for|that|which)\b|怎么|怎样|如何|咋|方法|步骤|教程|代码|函数|脚本|在哪里?(?:查|看|改|找|设|修|取|申请|下载)|哪里(?:可以|能)"
)

_CHINESE_TIME: Final = re.compile(
    "今天|今日|今晚|今早|今夜|今年|明天|明日|明早|明晚|明年|昨天|昨日|昨晚|昨夜|前天|后天(?!性|的?培养|努力|习得)|去年|"
    "前年|后年|本周|这周|这一?个?(?:星期|礼拜)|上周|下周|上个?(?:星期|礼拜)|下个?(?:星期|礼拜)|(?:这|本|下|上)个?周末|现任|"
    "本月|这个月|上个?月|下个?月|月底|本季度?|上季度|下季度|本年度?|年底|"
    "现在(?!完成|进行|分词|时态?的?用法|主义)|目前|当前(?!目录|路径|文件|行|列|用户|分支|页|窗口|进程|线程|工作|标签|节点|元素|会话|类|对象)|"
    "眼下|此刻|此时|如今|当下|最近|近期|近日|近来|刚刚|刚才|(?<!到)最新|下一?次|实时|即时(?!通讯|通信|编译|贴现)|"
    "几点了|几点钟了?|几号了|星期几了|周几了|天气|气温|下雨吗|下雪吗|股价|汇率(?=.{0,40}(?:多少|几))|金价|油价|房价|币价|行情|大盘|"
    "新闻(?!稿|学|专业|系|发布|传播|工作|特写|写作|体裁|标题怎么|的特点|价值)|热搜|比分|赛况|赛果|路况|限行|"
    "多大了|几岁了|多大年纪|多少岁了|还有(?:多少|几)(?:天|个?小时|分钟|个?月|周)|(?:多少|几)天后?(?:过年|放假|开学|高考)|倒计时|截至|截止(?:到|目前)|"
    "谁(?:赢|夺冠|领先|当选)|下一班|下一?趟|"
    "(?:系统|服务器?|网站|网络|应用|app|平台|接口)(?:是不是|是否)?(?:挂|崩|宕机|瘫痪|恢复|在?维护)(?:了|中|吗|么)|"
    "还(?:在|有|能|开|没)[^。？?，,]{0,8}(?:货|营业|开门|上映|有效|维修|维护)|停电|停水"
)
_CHINESE_STATE: Final = re.compile(
    "(?:总统|首相|总理|主席|国王|女王|教皇|国务卿|校长|市长|省长|部长|ceo|总裁|董事长|冠军|首富|主教练|队长|保持者|得主|影帝|影后|最佳影片)"
    "(?:是|叫)(?:谁|哪|什么)|谁是[^，。？?]{0,8}(?:总统|首相|总理|主席|ceo|首富|冠军)|"
    "(?:指数|美元|欧元|日元|英镑|港币|黄金|白银|比特币|以太坊|净值|利率|病例|湿度|空气质量|pm2\\.?5|紫外线)[^，。？?]{0,10}"
    "(?:多少|几|怎么样|高吗|强吗|高不高|强不强|什么价)|积分榜|射手榜|金牌榜|奖牌榜|票房|有什么热点|限号|堵不堵|堵吗|冷不冷|热不热|"
    "几点日[落出]|有货吗|还有多久|正在(?:上映|热播|直播|举行)|在哪个?(?:球队|队|俱乐部)|是不是(?:挂|崩|坏|宕机|停)|"
    "什么时候(?:出|上映|恢复|更新|发布|开售|开学|放假|播出?|回来|上线|立春|入冬|入夏)[?？。!！\\s]*$|"
    "还(?:开|在|有|营业|卖)[^，。？?]{0,4}(?:吗|么)[?？。\\s]*$|多少钱了|(?:开着|关着|开门|关门|营业)(?:的|了)?(?:吗|么|没)"
)
_CHINESE_DONE: Final = re.compile("(?:了(?:吗|没有?|么)|到哪儿?了)[?？。!！\\s]*$")
"""Whether something has come about: yes today, no yesterday."""
_OWN_ZH: Final = (
    "(?:余额|订单|快递|包裹|物流|外卖|账单|欠款|额度|信用分|征信|积分|里程|流量|话费|电费|水费|燃气费|学费|年假|病假|假期|假|"
    "工资|薪水|薪资|奖金|社保|公积金|医保|个税|成绩|分数|绩点|排名|学分|报告|检查结果|化验单|预约|挂号|行程|航班|车票|机票|门票|"
    "座位|日程|会议|待办|邮件|消息|密码|手机号|电话|地址|身份证号|卡号|账号|帐号|名字|姓名|生日|年龄|合同|保单|理赔|退款|返现|"
    "报销|工单|申请|审批|进度|套餐|会员|优惠券|红包|礼品卡|存款|贷款|房贷|车贷|花呗|理财|收益|基金|股票|持仓|账户|帐户|卡里|"
    "血型|体重|身高|病历|处方|药|主治医生|领导|经理|部门|工号|学号|位置|待遇|提成|考勤|绩效|发票)"
)
_CHINESE_PERSONAL: Final = re.compile(
    "(?:我|俺|咱|本人)(?:们)?的?[^，。？！?!,;；]{0,6}?" + _OWN_ZH + "[^，。？！?!,;；]{0,8}?"
    "(?:是?多少|剩(?:多少|几|余)|几[个天张笔次分件条号点]|到哪|到了哪|在哪(?!里?(?:查|看|改|找|设|修|取|申请|下载))|是(?:什么|啥|哪|谁)|"
    "什么时候|啥时候|何时|多久|了吗|了没|没有?[?？]|了么|怎么样了|咋样了|状态|到账|发货|通过|批了|好了)|"
    "(?:我|本人|我们)(?:现在|目前|还|一共|总共|今年|这个月|已经|到底){0,2}(?:欠|剩下?|有|花了?|赚了?|存了?|用了?|休了?)(?:多少|几)|"
    "我(?:还)?有(?:哪些|什么|啥)[^，。？！?!,;；]{0,4}" + _OWN_ZH + "|"
    "我(?:是谁|叫什么|姓什么|住在?哪|几岁|多大|多高|多重|在哪(?!里?(?:可以|能|查|看|改|找|办|买|下载)))|(?:记得|认识|知道)我(?:是谁|吗|叫)?|"
    "我(?:符合|满足|有没有|有|够)[^，。？！?!,;；]{0,6}(?:条件|资格)(?:吗|么|没)"
)
_CHINESE_MINE: Final = re.compile(
    "(?:我|俺|咱|本人)[^，。？?！!]{0,12}了(?:吗|没有?|么)[?？。!！\\s]*$|"
    "^(?:我|我们|咱们?|本人|我家)(?!想|要|忘|丢|需|能|可以)的?[^，。？?！!]{0,4}(?:"
    + _OWN_ZH
    + "|检查结果|违章|红包|押金|单号|卡号|保单)"
    "[^，。？?！!]{0,4}[?？。!！\\s]*$(?<!怎么办)(?<!怎么办[?？])|"
    "^(?:请|帮我|给我|麻烦)?(?:查|看|查询|查看|查一?下|看一?下|查询一?下)?" + _OWN_ZH + "[?？。!！\\s]*$|"
    "(?:订单|单号|运单|快递)(?:号|编号)? ?[a-z]{0,4}\\d{4,}|"
    "我(?:是|属于|在|排|算)(?:哪|什么(?!意思)|第几|几|多少)|"
    "我(?:考|请|挂|拿|得|欠|交|能贷|能借|花|赚)了?(?:的是)?(?:多少|几|哪)|[我的][^，。？?]{0,8}为什么被|"
    "我们?(?:上次|上回|刚才|刚刚|之前|昨天)(?:说|问|聊|提|买|点)|我的?[^，。？?]{0,4}(?:要还|亏了?|跌了?|涨了?|赚了?|交了?)(?:多少|几)|"
    "我有(?:未读|新的?|待)|我(?!要|该|应该|可以|能)[^，。？?！!]{0,8}(?:是(?:多少|几点|几号|哪)|几点)[^，。？?]{0,4}[?？。\\s]*$"
)
_CHINESE_ORDER: Final = re.compile(
    "(?:查|查询|查看|查一查|查查|查一下|看看|看一下|看下|告诉我|列出|列一下|显示|打开|找一下|找找|调出|读一下|念一下|总结)(?:一下|下)?"
    "(?:我|本人|我们|我自己)的?[^，。？！?!,;；]{0,6}?" + _OWN_ZH
)
_CHINESE_PLACE: Final = re.compile(
    "(?:^|[\\s，。？！,.?!我这在找去看搜查有])附近|离(?:我|这|这里|这儿|我家)(?:最近|不远|多远)|我(?:这里|这儿|这边|所在)|我(?:们)?(?:当地|本地)"
)
_CHINESE_HERE: Final = re.compile(
    "(?:^|我们?|我家|小区|学校|公司)(?:的)?(?:附近|周边|周围|旁边)|(?:这里|这儿|这边)(?:到|有|能|可以|的|附近)|从(?:这里|这儿|这边|家)|"
    "^当地|本地|本市|本省|同城|我们(?:市|省|县|区|村|镇|小区)|离(?:我|这里|这儿|这|家)[^，。？?]{0,2}(?:近|多远|远)|"
    "^最近的(?!一次|版本|新闻|活动)"
)
_CHINESE_MORE: Final = re.compile(
    "^(?:请|那)?(?:再(?:来|说|想|讲|给|试|写|换|出)|重新|重来|继续|接着|下一|另一|别的|换一|换个|还有吗|还有呢|更多)[^，。？?！!]{0,5}[?？。!！\\s]*$|"
    "(?:讲|写|编|出|来|给我|作)(?:我)?(?:讲|写|来|编)?(?:一?个|一?首|一?则|一?道|点)[^，。？?！!]{0,4}(?:故事|诗|冷知识|谜语|题|有趣的|好玩的|笑话)|"
    "抽(?:奖|一?张)|(?:选|挑)一?个[?？。!！\\s]*$|^(?:给[^，。]{1,4})?起个?名字?[?？。!！\\s]*$"
)
_CHINESE_CHANCE: Final = re.compile(
    "(?:讲|说|来)(?:一?个|一?则|一?段|点)?[^，。？！?!,;；]{0,4}(?:笑话|段子|谜语|脑筋急转弯)|随便(?:给|来|推荐|选|说|写|挑)|"
    "(?:再|重新)(?:来|换|写|生成|出)(?:我)?(?:一?个|一?首|一?份|一?次|一?遍|一下|点)|^换一?(?:个|首|种|句)|"
    "(?:想|选|挑|猜)(?:一?个)(?:数字|数|字母|颜色)|随机(?:选|挑|抽|起|取名|生成|给|来|推荐|说|讲|出|取|产生)|(?:掷|扔|丢|投|抛|摇)(?:一?个|一?次|"
    "一?下)?(?:骰子|色子|硬币)|抽(?:一?个|一?支|一?下)?签|摇号|"
    "(?:生成|给我|来一?个|弄一?个|想一?个|设一?个|取一?个|起一?个|造一?个)[^，。？！?!,;；]{0,10}(?:密码|口令|密钥|uuid|UUID|验证码|随机)"
)
_GIVEN: Final = re.compile(
    r"^.{0,40}?(?:translat|proofread|rewrite|paraphrase|correct the|翻译|润色|改写|纠正|校对).{0,80}?[:：\"“‘「『\n]",
    re.S,
)
"""It brings along the text that it is about, and what that says is not asked."""
_CODE: Final = re.compile(
    r"\b(?:python|java|javascript|typescript|sql|mysql|postgres\w*|excel|bash|shell|linux|golang|rust|php|ruby|pandas|"
    r"regex|cron|api|vba|c\+\+|c#|\.net|function|script|query|code)(?![a-z])|"
    r"(?:获取|取得|得到|显示)(?:系统)?(?:当前|今天)的?(?:时间|日期)"
)
_HAN: Final = re.compile("[\u4e00-\u9fff]")
_TRADITIONAL: Final = (
    "現氣幾點號匯價餘額訂單賬帳發還嗎麼誰時這個週後齡離請講話碼機隨給換來歲紅銀貨資剛當實聞員會總統們裡裏邊條遠開關貸積領門電體報"
    "檢結級績種張擲拋幣數選繼續寫詩編題贏奪勝費應該沒過從間東賽聯陽醫處學車損險購買賣經辦務賺虧漲誌錄陣產國簽證問題雲颱溫熱濕質"
    "劃運遞達況狀態帶單樂鐘歷農曆節業飛馬龍場線網絡戶頭優惠獎貼"
)
_SIMPLIFIED: Final = (
    "现气几点号汇价余额订单账账发还吗么谁时这个周后龄离请讲话码机随给换来岁红银货资刚当实闻员会总统们里里边条远开关贷积领门电体报"
    "检结级绩种张掷抛币数选继续写诗编题赢夺胜费应该没过从间东赛联阳医处学车损险购买卖经办务赚亏涨志录阵产国签证问题云台温热湿质"
    "划运递达况状态带单乐钟历农历节业飞马龙场线网络户头优惠奖贴"
)
_PLAIN: Final = (
    str.maketrans(_TRADITIONAL, _SIMPLIFIED)
    | {code: code - 0xFEE0 for code in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}
    | dict.fromkeys(
        (0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10), 0xFEFF)
    )
    | {0x2018: "'", 0x2019: "'", 0x3000: " ", 0xA0: " "}
)
"""Characters as the rules have them: simplified, of common width, and none that cannot be seen."""


def of(text: str) -> str:
    """TIME, PERSONAL, PLACE, CHANCE, or "": its answer is the same for all."""
    if len(text) > _MOST:
        text = text[:_END] + "\n" + text[-_END:]
    text = text.lower()
    if text.isascii():
        found = _english(text)
    else:
        text = text.translate(_PLAIN).lower()
        found = (_chinese(text) if _HAN.search(text) else "") or _english(text)
    if not found or _GIVEN.search(text):
        return ""
    return found if found != TIME or not (_CODE.search(text) and _HOW.search(text)) else ""


def _english(text: str) -> str:
    if text.isascii():
        raw = text.encode("ascii")
        words = raw.translate(_NO_LETTER).decode("ascii").split()
        apart = not raw.translate(None, _APART)
    else:
        words = text.translate(_NO_WORD).split()
        apart = False
    worth = trying.worth(words if apart else _RUN.findall(text), text)
    if _ASKS_STATE.match(text) and _ENGLISH_STATE_FIRST.match(text):
        return TIME
    if not worth:
        return ""
    if (worth & trying.TIME and not _TIME_WORDS.isdisjoint(words) and _ENGLISH_TIME.search(text)) or (
        worth & trying.STATE and (not _STATE_WORDS.isdisjoint(words) or "be up" in text) and _ENGLISH_STATE.search(text)
    ):
        return TIME
    if (
        (worth & trying.MY and "my" in words and _mine(text, words))
        or (worth & trying.MINE and not _MINE_WORDS.isdisjoint(words) and _ENGLISH_MINE.search(text))
        or (worth & trying.I and "i" in words and _ENGLISH_I.search(text))
        or (worth & trying.KNOWN and "me" in words and _KNOWN.search(text))
    ) and not _HOW.search(text):
        return PERSONAL
    if (
        worth & (trying.PLACE | trying.HERE)
        and not _PLACE_WORDS.isdisjoint(words)
        and (
            (worth & trying.PLACE and _ENGLISH_PLACE.search(text))
            or (worth & trying.HERE and _ENGLISH_HERE.search(text))
        )
    ):
        return PLACE
    if (
        worth & (trying.CHANCE | trying.MORE)
        and not _CHANCE_WORDS.isdisjoint(words)
        and (
            (worth & trying.CHANCE and _ENGLISH_CHANCE.search(text))
            or (worth & trying.MORE and _ENGLISH_MORE.search(text))
        )
        and not _HOW.search(text)
    ):
        return CHANCE
    return ""


def _mine(text: str, words: list[str]) -> bool:
    return _ENGLISH_MY.search(text) is not None or (
        not _ORDER_WORDS.isdisjoint(words) and _ENGLISH_ORDER.search(text) is not None
    )


_KNOWN: Final = re.compile(r"\bdo you (?:remember|know|recogni[sz]e) me\b")


def _chinese(text: str) -> str:
    if _CHINESE_PLACE.search(text) or _CHINESE_HERE.search(text):
        return PLACE
    if _CHINESE_TIME.search(text) or _CHINESE_STATE.search(text):
        return TIME
    own = "我" in text or "本人" in text or "咱" in text or "俺" in text
    if (
        (own and (_CHINESE_PERSONAL.search(text) or _CHINESE_ORDER.search(text))) or _CHINESE_MINE.search(text)
    ) and not _HOW.search(text):
        return PERSONAL
    if _CHINESE_DONE.search(text):
        return TIME
    if (_CHINESE_CHANCE.search(text) or _CHINESE_MORE.search(text)) and not _HOW.search(text):
        return CHANCE
    return ""
