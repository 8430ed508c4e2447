-- wrk's side of the proxy benchmark:  wrk … -s load.lua URL -- unary PROMPT_BYTES
--                                     wrk … -s load.lua URL -- stream CONNECTIONS RAMP_MS TOKENS
--
-- Streams begin out of step, each connection's first at a random moment within RAMP_MS: in step,
-- 256 requests would arrive at once and then none for a while. Every whole stream is read and its
-- events are counted: one with another number than TOKENS and [DONE] was cut, whatever its status
-- says.
-- The last line printed is JSON, for wrk's own report rounds.

local QUESTION = '{"model":"tiny","messages":[{"role":"system","content":"You are a helpful ' ..
  'assistant."},{"role":"user","content":"%s"}],"max_tokens":%d,"stream":%s}'
local SENTENCE = 'Say \\"hello world\\" to the caf\xc3\xa9.\\n'

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  local streaming = args[1] == "stream"
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  local prompt_bytes = streaming and 600 or tonumber(args[2])
  local tokens = streaming and tonumber(args[4]) or 64
  local prompt = SENTENCE:rep(math.floor(prompt_bytes / #SENTENCE))
  wrk.body = QUESTION:format(prompt, tokens, tostring(streaming))
  whole, cut, events = 0, 0, 0
  if streaming then
    be_a_stream(tonumber(args[2]), tonumber(args[3]), tokens + 1)
  end
end

-- wrk asks for `delay` and `response` only where they exist: plain requests go without their cost.
function be_a_stream(connections, ramp_ms, wanted)
  local begun = 0
  function delay()
    begun = begun + 1
    return begun <= connections and math.random(0, ramp_ms) or 0
  end
  function response(status, _, body)
    local seen = 0
    for _ in body:gmatch("data: [^\n]+\n\n") do
      seen = seen + 1
    end
    events = events + seen
    if seen == wanted then
      whole = whole + 1
    elseif status == 200 then
      cut = cut + 1
    end
  end
end

function total(name)
  local sum = 0
  for _, thread in ipairs(threads) do
    sum = sum + thread:get(name)
  end
  return sum
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '{"answers":%d,"p50_ms":%.3f,"p99_ms":%.3f,"whole_streams":%d,"events":%d,"errors":{' ..
      '"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d,"cut stream":%d}}\n',
    summary.requests, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    total("whole"), total("events"),
    errors.connect, errors.read, errors.write, errors.timeout, errors.status, total("cut")))
end
