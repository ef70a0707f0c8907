-- wrk: cycle over request bodies (one a line), stop when the COUNTth is sent, print a summary as JSON.
-- Environment: BODIES (file of request bodies), COUNT, KEY (bearer token),
-- PAUSE_MS (longest pause between an answer and the next request), MARK (twelve characters of a body: each request has
-- another number in their place, from FIRST on).
local bodies, at, sent = {}, 0, 0
local mark = os.getenv("MARK")
local stop_at = tonumber(os.getenv("COUNT"))
local first = tonumber(os.getenv("FIRST") or "0")

function init(args)
  local headers = { ["content-type"] = "application/json", ["authorization"] = "Bearer " .. os.getenv("KEY") }
  for line in io.lines(os.getenv("BODIES")) do
    local whole = wrk.format("POST", "/v1/chat/completions", headers, line)
    local from, to = 1, 0
    if mark then from, to = whole:find(mark, 1, true) end
    if mark and from then
      bodies[#bodies + 1] = { whole:sub(1, from - 1), whole:sub(to + 1) }
    else
      bodies[#bodies + 1] = { whole }
    end
  end
end

function request()
  sent = sent + 1
  if sent == stop_at then
    wrk.thread:stop()
    io.write("STOP\n") -- wrk itself sleeps to the end of its duration: the harness interrupts it
    io.flush()
  end
  at = at % #bodies + 1
  local body = bodies[at]
  if body[2] then return body[1] .. string.format("%012.0f", first + sent) .. body[2] end
  return body[1]
end

local pause = tonumber(os.getenv("PAUSE_MS") or "0")
if pause > 0 then
  function delay() return math.random(0, pause) end
end

function done(summary, latency, requests)
  io.write(string.format(
    'JSON {"requests": %d, "seconds": %.6f, "bytes": %d, "connect": %d, "read": %d, "write": %d, "status": %d, ' ..
    '"timeout": %d, "p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, summary.errors.connect, summary.errors.read,
    summary.errors.write, summary.errors.status, summary.errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
