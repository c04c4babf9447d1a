-- Requests for wire_workloads.py: bodies of 20 to 420 bytes, a traceparent that is never the same.
local queue = "/api/v1/namespaces/bench/queues/q"
local kind = os.getenv("WIRE_KIND") or "publish"
local path = os.getenv("WIRE_PATH") or queue .. "/messages"
local field = os.getenv("WIRE_FIELD") or "payload"
local count, receipts, bodies = 0, {}, {}
if kind == "settle" then
  for line in io.lines(os.getenv("WIRE_RECEIPTS")) do table.insert(receipts, line) end
end
for i = 1, 64 do
  bodies[i] = string.format('{"%s":"%s"}', field, string.rep("x", 20 + (i * 37) % 400))
end

function request()
  count = count + 1
  local headers = {
    ["Content-Type"] = "application/json",
    ["traceparent"] = string.format("00-%032x-%016x-01", count * 7919, count),
  }
  if kind == "publish" then
    return wrk.format("POST", path, headers, bodies[count % 64 + 1])
  elseif kind == "get" then
    return wrk.format("GET", path, headers)
  elseif #receipts > 0 then
    return wrk.format("POST", "/api/v1/settle", headers, '{"ack":["' .. table.remove(receipts) .. '"]}')
  end
  return wrk.format("POST", queue .. "/lease", headers, "{}")
end

if kind == "lease" then
  function response(status, headers, body)
    local receipt = string.match(body, '"messages":.-"receipt":"([^"]+)"')
    if receipt then table.insert(receipts, receipt) end
  end
end
