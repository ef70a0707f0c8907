"""What Redis (7 or later) or Valkey does by itself, in Lua: each is one step to everyone who asks. Where its memory is
full, nothing is put, and purges go on.

Keys, all under `forebay:cache:`, in one database (no cluster):

    a:ENTRY      hash: r the packed record, and beside it, the same in every format so that any version can purge and
                 expire it: x exact (hex), c scope (hex), q question, p partition, m model, v version, t tags and
                 s sources (JSON), u until (Unix seconds)
    xF:EXACT     the entry, of records of format F; it may be gone, or another one's by now
    drops        stream: drop N has the id N-0; w a random word, by who dropped, at when (Unix seconds), d the Drop in
                 MessagePack. The last one is kept always: its number and word say which drops a host knows
"""

from __future__ import annotations

from typing import Final

from forebay.cache.stores.sharing import KEPT_DROPS

PREFIX: Final = "forebay:cache:"
ANSWER: Final = PREFIX + "a:"
DROPS: Final = PREFIX + "drops"

# KEYS: xF:EXACT. Returns the record.
EXACT: Final = f"""#!lua flags=no-writes
local entry = redis.call('GET', KEYS[1])
if not entry then return false end
return redis.call('HGET', '{ANSWER}' .. entry, 'r')
"""

_LAST: Final = f"""
local function last()
  local found = redis.call('XREVRANGE', '{DROPS}', '+', '-', 'COUNT', 1)[1]
  if not found then return 0, '' end
  return tonumber(string.match(found[1], '^%d+')), found[2][2]
end
local n, word = last()
"""

# KEYS: a:ENTRY, xF:EXACT. ARGV: number and word of the last drop that this host knows, entry, expiry (Unix ms), then
# the hash's fields and values. Returns {'behind'} where others came, or {'kept', the entry it takes the place of}.
PUT: Final = (
    "#!lua\n"
    + _LAST
    + f"""
if n ~= tonumber(ARGV[1]) or word ~= ARGV[2] then return {{'behind'}} end
local entry = ARGV[3]
local old = redis.call('GET', KEYS[2])
if old and old ~= entry then redis.call('DEL', '{ANSWER}' .. old) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('PEXPIREAT', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], entry)
redis.call('PEXPIREAT', KEYS[2], ARGV[4])
if old and old ~= entry then return {{'kept', old}} end
return {{'kept'}}
"""
)

# ARGV: a random word, who, when, the Drop.
DROP: Final = (
    "#!lua flags=allow-oom\n"
    + _LAST
    + f"""
redis.call('XADD', '{DROPS}', 'MAXLEN', {KEPT_DROPS}, string.format('%d-0', n + 1),
  'w', ARGV[1], 'by', ARGV[2], 'at', ARGV[3], 'd', ARGV[4])
return 1
"""
)

# ARGV: the number of a drop. Returns {number and word of the last one, the word of that one, or '' where it is not
# kept, those after it: by, at, d of each}.
NEWS: Final = (
    "#!lua flags=no-writes\n"
    + _LAST
    + f"""
local from = ARGV[1] .. '-0'
local that = redis.call('XRANGE', '{DROPS}', from, from)[1]
local found = {{}}
for _, item in ipairs(redis.call('XRANGE', '{DROPS}', '(' .. from, '+')) do
  table.insert(found, {{item[2][4], item[2][6], item[2][8]}})
end
return {{n, word, that and that[2][2] or '', found}}
"""
)

# ARGV: cursor, count, then entry, model, version, tag, source, partition, partition with a slash; '' where not given.
# Returns {cursor, entries that were removed}.
SWEEP: Final = f"""#!lua flags=allow-oom
local entry, model, version, tag, source, partition, below = unpack(ARGV, 3)
local cursor, keys = '0', {{'{ANSWER}' .. entry}}
if entry == '' then
  local found = redis.call('SCAN', ARGV[1], 'MATCH', '{ANSWER}*', 'COUNT', ARGV[2])
  cursor, keys = found[1], found[2]
end
local function has(json, wanted)
  if wanted == '' then return true end
  if not json then return false end
  for _, one in ipairs(cjson.decode(json)) do if one == wanted then return true end end
  return false
end
local gone = {{}}
for _, key in ipairs(keys) do
  local of = redis.call('HMGET', key, 'm', 'v', 't', 's', 'p')
  local p = of[5] or ''
  if (model == '' or of[1] == model) and (version == '' or of[2] == version) and has(of[3], tag) and has(of[4], source)
    and (partition == '' or p == partition or string.sub(p, 1, #below) == below) and redis.call('DEL', key) == 1 then
    table.insert(gone, string.sub(key, {len(ANSWER) + 1}))
  end
end
return {{cursor, gone}}
"""

# ARGV: cursor, count. Returns {cursor, entry, scope, question, partition, until of each that has a scope}.
QUESTIONS: Final = f"""#!lua flags=no-writes
local found = redis.call('SCAN', ARGV[1], 'MATCH', '{ANSWER}*', 'COUNT', ARGV[2])
local of = {{}}
for _, key in ipairs(found[2]) do
  local one = redis.call('HMGET', key, 'c', 'q', 'p', 'u')
  if one[1] and one[1] ~= '' then
    table.insert(of, {{string.sub(key, {len(ANSWER) + 1}), one[1], one[2], one[3], one[4]}})
  end
end
return {{found[1], of}}
"""

# ARGV: cursor, count. Returns {cursor, how many}.
COUNT: Final = f"""#!lua flags=no-writes
local found = redis.call('SCAN', ARGV[1], 'MATCH', '{ANSWER}*', 'COUNT', ARGV[2])
return {{found[1], #found[2]}}
"""
